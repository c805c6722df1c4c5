"""Runs one of the programs here: program.py NAME RUN --figures FILE.

A program is a module whose function `figures` takes the options and returns lists of numbers by
name. The rest of this file is what the programs share: options and DeepSpeed's configuration.
"""

import argparse
import importlib
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

Figures = dict[str, list[float]]

ZERO = {
    "overlap_comm": False,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_gather_16bit_weights_on_model_save": True,
}


def options() -> argparse.Namespace:
    """Of the words of a run, "stage3" and "bf16" mean the same in all programs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("run", help="its name in runs.py")
    parser.add_argument("--figures", type=Path, required=True, help="where losses and norms go")
    parser.add_argument("--local_rank", type=int, default=0, help="the launcher's")
    given = parser.parse_args()
    given.words = given.run.split("-")
    given.bf16 = "bf16" in given.words
    (given.stage,) = (int(word[5:]) for word in given.words if word.startswith("stage"))
    return given


def trainer_config(stage: int) -> dict[str, Any]:
    """As Hugging Face's documentation has it: what the Trainer knows is "auto"."""
    return {
        "zero_optimization": {"stage": stage, **ZERO},
        "bf16": {"enabled": "auto"},
        **dict.fromkeys(("gradient_clipping", "gradient_accumulation_steps"), "auto"),
        **dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu"), "auto"),
    }


def scheduled_config(stage: int, adam: str, schedule: str, warmup: str) -> dict[str, Any]:
    """With DeepSpeed's optimizer and schedule, whose settings the Trainer knows."""
    optimizer = dict.fromkeys(adam.split(), "auto") | {"torch_adam": True}
    return trainer_config(stage) | {
        "optimizer": {"type": "AdamW", "params": optimizer},
        "scheduler": {"type": schedule, "params": dict.fromkeys(warmup.split(), "auto")},
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
    own = {"optimizer": {"type": "AdamW", "params": params}, "gradient_accumulation_steps": 2}
    return plain_config(given.stage, given.bf16, **own)


def trained(engine: Any, steps: int, loss_of: Callable[[], torch.Tensor]) -> Figures:
    """Losses of micro-steps, and norms of steps."""
    found: Figures = {"loss": [], "grad_norm": []}
    for _ in range(steps):
        loss = loss_of()
        engine.backward(loss)
        ends = engine.is_gradient_accumulation_boundary()
        engine.step()
        found["loss"].append(mean(loss))
        if ends:
            found["grad_norm"].append(mean(engine.get_global_grad_norm()))
    return found


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


def history(trainer: Any, names: Iterable[str] = ("loss", "grad_norm")) -> Figures:
    log = trainer.state.log_history
    return {name: [float(entry[name]) for entry in log if name in entry] for name in names}


class OnCpus:
    """Lightning's DeepSpeedStrategy but for its refusal of ranks without a GPU."""

    any_device: Any  # Lightning's strategy that refuses none

    @property
    def root_device(self) -> torch.device:
        return torch.device("cpu", self.local_rank)  # DeepSpeed wants a number

    def setup_environment(self) -> None:
        self.any_device.setup_environment(self)


def mean(value: Any) -> float:
    """Over the ranks."""
    total = torch.as_tensor(value).detach().float().cpu().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def main() -> None:
    given = options()
    # DeepSpeed's zero.Init takes a job to have one rank if it was not DeepSpeed that joined them,
    # as it is not in a Trainer on CPUs.
    deepspeed.init_distributed()
    found = importlib.import_module(given.program).figures(given)
    if dist.get_rank() == 0:
        given.figures.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
