"""Hugging Face's Trainer with activation checkpointing and accumulation; it saves and resumes."""

from typing import Any

import torch
from program import Figures, history, trainer_arguments
from tiny import WORDS, llama, shared_folder
from transformers import Trainer, TrainingArguments


class Sequences(torch.utils.data.Dataset):
    """Words that follow each other by a rule."""

    def __init__(self, count: int) -> None:
        start, step = torch.arange(count)[:, None], 1 + torch.arange(count)[:, None] % 5
        self.rows = 4 + (start * 7 + step * torch.arange(16)) % WORDS

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def make_trainer(given: Any, folder: str) -> Trainer:
    arguments = TrainingArguments(
        **trainer_arguments(given, output_dir=folder, save_strategy="steps", save_steps=4),
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": "reentrant" in given.words},
        warmup_steps=2,
        weight_decay=0.1,
        max_grad_norm=0.5,
    )
    return Trainer(
        model=llama(use_cache=False),
        args=arguments,
        train_dataset=Sequences(64),
        eval_dataset=Sequences(8),
    )


def figures(given: Any) -> Figures:
    folder = shared_folder()
    trainer = make_trainer(given, folder)
    trainer.train()
    found = history(trainer) | {"eval_loss": [trainer.evaluate()["eval_loss"]]}
    resumed = make_trainer(given, folder)
    resumed.train(resume_from_checkpoint=f"{folder}/checkpoint-4")
    found["resumed_loss"] = history(resumed)["loss"]
    found["resumed_eval_loss"] = [resumed.evaluate()["eval_loss"]]
    return found
