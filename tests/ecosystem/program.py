"""The frame of every program here: its options, DeepSpeed's configuration, its file of figures."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

ZERO = {
    "overlap_comm": False,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_gather_16bit_weights_on_model_save": True,
}


def start() -> argparse.Namespace:
    """Reads the command line and joins the ranks.

    DeepSpeed's zero.Init takes a job to have one rank if it was not DeepSpeed that joined them, as
    it is not in a Trainer on CPUs.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=3)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--lora", action="store_true", help="adapters alone are trained")
    parser.add_argument("--reentrant", action="store_true", help="the older checkpointing")
    parser.add_argument("--restore", action="store_true", help="from a checkpoint, and train on")
    parser.add_argument("--model", default="mixtral", help="a type of transformers'")
    parser.add_argument("--trainer", default="reward", help="or kto, of TRL's")
    parser.add_argument("--figures", type=Path, required=True, help="where losses and norms go")
    parser.add_argument("--local_rank", type=int, default=0, help="the launcher's")
    given = parser.parse_args()
    deepspeed.init_distributed()
    return given


def trainer_config(stage: int) -> dict[str, Any]:
    """As Hugging Face's documentation has it: what the Trainer knows is "auto"."""
    return {
        "zero_optimization": {"stage": stage, **ZERO},
        "bf16": {"enabled": "auto"},
        "gradient_clipping": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
    }


def plain_config(stage: int, bf16: bool, **changes: Any) -> dict[str, Any]:
    """For programs that call `deepspeed.initialize` themselves."""
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": bf16},
        "steps_per_print": 1000,
        **changes,
    }


def trained_config(given: argparse.Namespace, lr: float) -> dict[str, Any]:
    """plain_config with AdamW, and two micro-steps a batch. DeepSpeed's own AdamW for CPUs would
    first be compiled, so it is torch's."""
    params = {"lr": lr, "weight_decay": 0.01, "torch_adam": True}
    return plain_config(
        given.stage,
        given.bf16,
        optimizer={"type": "AdamW", "params": params},
        gradient_accumulation_steps=2,
    )


def trainer_arguments(given: argparse.Namespace, **changes: Any) -> dict[str, Any]:
    """For TrainingArguments and what derives from it; the output folder is each rank's own."""
    return {
        "output_dir": tempfile.mkdtemp(),
        "deepspeed": trainer_config(given.stage),
        "bf16": given.bf16,
        "use_cpu": True,
        "max_steps": 8,
        "per_device_train_batch_size": 2,
        "learning_rate": 3e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **changes,
    }


def history(trainer: Any, names: Iterable[str] = ("loss", "grad_norm")) -> dict[str, list[float]]:
    """What a Trainer logged."""
    log = trainer.state.log_history
    return {name: [float(entry[name]) for entry in log if name in entry] for name in names}


def mean(value: Any) -> float:
    """Over the ranks."""
    total = torch.as_tensor(value).detach().float().cpu().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def write(given: argparse.Namespace, figures: Mapping[str, list[float]]) -> None:
    """Rank 0 writes what the run is compared by: lists of numbers, by name."""
    if dist.get_rank() == 0:
        given.figures.write_text(json.dumps(figures))
