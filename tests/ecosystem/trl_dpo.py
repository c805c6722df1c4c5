"""TRL's direct preference optimization, whose reference model is a second engine."""

from __future__ import annotations

from datasets import Dataset
from program import history, start, trainer_arguments, write
from tiny import save_llama, sentence, tokenizer
from trl import DPOConfig, DPOTrainer


def main() -> None:
    given = start()
    pairs = [
        {"prompt": sentence(at, 4), "chosen": " " + sentence(at, 9), "rejected": " w1 w1 w2"}
        for at in range(32)
    ]
    trainer = DPOTrainer(
        model=save_llama(),
        args=DPOConfig(**trainer_arguments(given, max_length=32, learning_rate=1e-3)),
        train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer(),
    )
    trainer.train()
    write(given, history(trainer, ("loss", "grad_norm", "rewards/margins")))


if __name__ == "__main__":
    main()
