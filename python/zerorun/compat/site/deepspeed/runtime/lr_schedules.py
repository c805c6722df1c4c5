"""The five schedules of DeepSpeed, computed by zerorun's core."""

from typing import Any

import torch
from zerorun import config as configuration
from zerorun.lr_scheduler import LrScheduler

LR_SCHEDULE = "lr_schedule"
LR_RANGE_TEST = "LRRangeTest"
ONE_CYCLE = "OneCycle"
WARMUP_LR = "WarmupLR"
WARMUP_DECAY_LR = "WarmupDecayLR"
WARMUP_COSINE_LR = "WarmupCosineLR"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]


class _Schedule(LrScheduler):
    positional: tuple[str, ...] = ()

    def __init__(self, optimizer: torch.optim.Optimizer, *args: Any, **params: Any) -> None:
        given = dict(zip(self.positional, args, strict=False)) | params
        basic = getattr(optimizer, "optimizer", optimizer)
        scheduler = {"type": type(self).__name__, "params": given}
        super().__init__(basic, configuration.parse({"scheduler": scheduler}).config)


class LRRangeTest(_Schedule):
    """A rising learning rate, to find the largest usable one."""

    positional = (
        "lr_range_test_min_lr",
        "lr_range_test_step_size",
        "lr_range_test_step_rate",
        "lr_range_test_staircase",
        "last_batch_iteration",
    )


class OneCycle(_Schedule):
    """One cycle of learning rate and momentum, then a decay."""

    positional = ("cycle_min_lr", "cycle_max_lr")


class WarmupLR(_Schedule):
    """A warm-up to a constant rate."""

    positional = (
        "warmup_min_lr",
        "warmup_max_lr",
        "warmup_num_steps",
        "warmup_type",
        "last_batch_iteration",
    )


class WarmupDecayLR(_Schedule):
    """A warm-up, then a linear decay to zero."""

    positional = ("total_num_steps", *WarmupLR.positional)


class WarmupCosineLR(_Schedule):
    """A warm-up, then half a cosine."""

    positional = (
        "total_num_steps",
        "warmup_min_ratio",
        "warmup_num_steps",
        "cos_min_ratio",
        "warmup_type",
        "last_batch_iteration",
    )
