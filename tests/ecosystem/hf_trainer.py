"""Hugging Face's Trainer with activation checkpointing and accumulation; it saves and resumes."""

from typing import Any

import torch
from program import Figures, history, trainer_arguments
from tiny import WORDS, llama, shared_folder
from transformers import Trainer, TrainingArguments


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    first = torch.arange(count)[:, None]
    found = 4 + (first * 7 + (1 + first % 5) * torch.arange(16)) % WORDS
    return [{"input_ids": row, "labels": row} for row in found]


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
    data = {"train_dataset": rows(64), "eval_dataset": rows(8)}
    return Trainer(model=llama(use_cache=False), args=arguments, **data)


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
