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
        name = type(self).__name__
        if len(args) > len(self.positional):
            raise TypeError(
                f"{name}: got {len(args)} positional arguments after the optimizer, expected at "
                f"most {len(self.positional)}: {', '.join(self.positional)}"
            )
        given = dict(zip(self.positional, args, strict=False))
        twice = given.keys() & params.keys()
        if twice:
            raise TypeError(f"{name}: got multiple values for {', '.join(sorted(twice))}")
        given |= params
        basic = getattr(optimizer, "optimizer", optimizer)
        super().__init__(basic, _parse(name, given))
        continued_from = given.get("last_batch_iteration", -1)
        if continued_from >= 0:
            self._applied = continued_from - self.last_batch_iteration
            self._set()


def _parse(name: str, params: dict[str, Any]) -> configuration.Config:
    """Checks all of `params`; the schedule starts at the beginning, from where it can continue."""
    configuration.parse({"scheduler": {"type": name, "params": params}})
    fresh = {key: value for key, value in params.items() if key != "last_batch_iteration"}
    return configuration.parse({"scheduler": {"type": name, "params": fresh}}).config


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

    positional = (
        "cycle_min_lr",
        "cycle_max_lr",
        "decay_lr_rate",
        "cycle_first_step_size",
        "cycle_second_step_size",
        "cycle_first_stair_count",
        "cycle_second_stair_count",
        "decay_step_size",
        "cycle_momentum",
        "cycle_min_mom",
        "cycle_max_mom",
        "decay_mom_rate",
        "last_batch_iteration",
    )


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
