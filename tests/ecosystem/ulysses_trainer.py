"""Hugging Face's Trainer with Ulysses: both ranks hold a part of each sequence."""

from typing import Any

import torch
from accelerate.utils import ParallelismConfig
from accelerate.utils.dataclasses import DeepSpeedSequenceParallelConfig
from program import Figures, history, trainer_arguments
from tiny import WORDS, llama
from transformers import Trainer, TrainingArguments

TOKENS = 32


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    """Words that follow each other by a rule; the first ones are a prompt."""
    found = []
    for at in range(count):
        words = 4 + (at * 7 + (1 + at % 5) * torch.arange(TOKENS)) % WORDS
        labels = words.clone()
        labels[: at % 20] = -100
        positions = torch.arange(TOKENS)
        found.append({"input_ids": words, "labels": labels, "position_ids": positions})
    return found


def figures(given: Any) -> Figures:
    sequences = DeepSpeedSequenceParallelConfig(
        sp_seq_length=TOKENS, sp_seq_length_is_variable=True, sp_attn_implementation="sdpa"
    )
    arguments = TrainingArguments(
        **trainer_arguments(given),
        parallelism_config=ParallelismConfig(
            sp_backend="deepspeed", sp_size=2, sp_handler=sequences
        ),
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=4,
        train_sampling_strategy="sequential",
    )
    data = rows(32)
    model = llama(use_cache=False, attn_implementation="sdpa")
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:4])
    trainer.train()
    return history(trainer, ("loss", "grad_norm", "eval_loss"))
