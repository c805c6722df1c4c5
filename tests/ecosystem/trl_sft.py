"""TRL's supervised fine-tuning of a model that `from_pretrained` loads, with evaluation."""

from __future__ import annotations

from datasets import Dataset
from program import history, start, trainer_arguments, write
from tiny import save_llama, sentence, tokenizer
from trl import SFTConfig, SFTTrainer


def main() -> None:
    given = start()
    folder = save_llama()
    arguments = SFTConfig(
        **trainer_arguments(given, max_length=32, eval_strategy="steps", eval_steps=4),
        packing=False,
    )
    data = Dataset.from_list([{"text": sentence(number)} for number in range(64)])
    trainer = SFTTrainer(
        model=folder,
        args=arguments,
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        processing_class=tokenizer(),
    )
    trainer.train()
    write(given, history(trainer, ("loss", "grad_norm", "eval_loss")))


if __name__ == "__main__":
    main()
