"""MMEngine's FlexibleRunner with its DeepSpeedStrategy: training, validation, a checkpoint."""

import importlib.util
import sys
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner._flexible_runner import FlexibleRunner
from program import Figures, mean, plain_config
from tiny import shared_folder
from torch import nn


class Classifier(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        # No bias, which the normalization takes off again: its gradient would be rounding noise, of
        # which AdamW makes whole steps, and evaluation, with the running mean, would show them.
        convolution = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.body = nn.Sequential(convolution, nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8 * 8 * 8, 4)

    def forward(self, image: torch.Tensor, label: torch.Tensor, mode: str = "tensor") -> Any:
        logits = self.head(self.body(image.to(self.head.weight.dtype)).flatten(1))
        if mode == "loss":
            return {"loss": F.cross_entropy(logits.float(), label)}
        return logits, label


def images(count: int) -> torch.utils.data.Dataset:
    found = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    bright = (found.mean((2, 3)) > 0).long()
    return torch.utils.data.TensorDataset(found, 2 * bright[:, 0] + bright[:, 1])


class Loss(BaseMetric):
    def process(self, data_batch: Any, data_samples: Any) -> None:
        logits, label = data_samples
        losses = F.cross_entropy(logits.float(), label, reduction="none")
        self.results.extend(losses.tolist())

    def compute_metrics(self, results: list[float]) -> dict[str, float]:
        return {"loss": sum(results) / len(results)}


class Hooked(Hook):
    """Losses and norms of training, and what the evaluator says."""

    def __init__(self) -> None:
        self.found: Figures = {"loss": [], "grad_norm": [], "val_loss": []}

    def after_train_iter(self, runner: Any, *_: Any, outputs: Any = None, **__: Any) -> None:
        self.found["loss"].append(mean(outputs["loss"]))
        self.found["grad_norm"].append(mean(runner.model.model.get_global_grad_norm()))

    def after_val_epoch(self, runner: Any, metrics: Any = None) -> None:
        self.found["val_loss"].append(metrics["loss"])


def loader(count: int) -> dict[str, Any]:
    return {
        "batch_size": 4,
        "num_workers": 0,
        "dataset": images(count),
        "sampler": {"type": "DefaultSampler", "shuffle": False},
        "collate_fn": {"type": "default_collate"},
    }


# MMEngine imports these by name; DeepSpeed 0.19 does not have them any more.
ONEBIT = ModuleType("deepspeed.runtime.fp16.onebit")
if importlib.util.find_spec(ONEBIT.__name__) is None:
    sys.modules[ONEBIT.__name__] = ONEBIT
    for optimizer in ("OnebitAdam", "OnebitLamb", "ZeroOneAdam"):
        setattr(ONEBIT, optimizer, type(optimizer, (), {}))


def figures(given: Any) -> Figures:
    folder = shared_folder()
    torch.manual_seed(0)
    hook = Hooked()
    config = plain_config(given.stage, given.bf16, train_micro_batch_size_per_gpu=4)
    config["zero_allow_untested_optimizer"] = True
    config["checkpoint"] = {"pickle_client_state": True}  # for objects of MMEngine's classes
    runner = FlexibleRunner(
        model=Classifier(),
        work_dir=folder,
        strategy={"type": "DeepSpeedStrategy", "config": config},
        train_dataloader=loader(32),
        val_dataloader=loader(16),
        val_cfg={},
        val_evaluator={"type": Loss},
        optim_wrapper={"type": "DeepSpeedOptimWrapper", "optimizer": {"type": "AdamW", "lr": 1e-2}},
        param_scheduler={"type": "LinearLR", "start_factor": 0.5, "end": 2},
        train_cfg={"by_epoch": True, "max_epochs": 2, "val_interval": 1},
        custom_hooks=[hook],
        default_hooks={"checkpoint": {"type": "CheckpointHook", "interval": 1}},
        launcher="pytorch",
        log_level="WARNING",
    )
    runner.train()
    if given.stage < 3:  # where DeepSpeed's load asks for a file that MMEngine does not write
        runner.strategy.load_checkpoint(f"{folder}/epoch_1.pth")
        runner.val()
    return hook.found
