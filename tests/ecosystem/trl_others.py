"""TRL's trainers of reward models and of KTO."""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from program import history, start, trainer_arguments, write
from tiny import save_llama, sentence, tokenizer
from trl import KTOConfig, KTOTrainer, RewardConfig, RewardTrainer


def rows(*names: str) -> Dataset:
    """Prompts, good and bad answers, and whether an answer is good."""
    found = []
    for at in range(32):
        prompt, good, bad = sentence(at, 4), " " + sentence(at, 9), " w1 w1 w2"
        answer = good if at % 2 == 0 else bad
        row = {"prompt": prompt, "chosen": good, "rejected": bad}
        found.append(row | {"completion": answer, "label": at % 2 == 0})
    return Dataset.from_list([{name: row[name] for name in names} for row in found])


def make_trainer(given: Any) -> Any:
    arguments = trainer_arguments(given, max_steps=5, learning_rate=1e-3)
    shared = {"model": save_llama(), "processing_class": tokenizer()}
    if given.trainer == "reward":
        data = rows("chosen", "rejected")
        return RewardTrainer(args=RewardConfig(**arguments), train_dataset=data, **shared)
    data = rows("prompt", "completion", "label")
    return KTOTrainer(args=KTOConfig(**arguments), train_dataset=data, **shared)


def main() -> None:
    given = start()
    trainer = make_trainer(given)
    trainer.train()
    write(given, history(trainer))


if __name__ == "__main__":
    main()
