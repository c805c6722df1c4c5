"""The five schedules of DeepSpeed, computed by zerorun's core."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import torch
from zerorun import config as configuration
from zerorun.optimizers.lr_scheduler import LrScheduler, set_rate

LR_SCHEDULE = "lr_schedule"
LR_RANGE_TEST = "LRRangeTest"
ONE_CYCLE = "OneCycle"
WARMUP_LR = "WarmupLR"
CYCLE_MOMENTUM = "cycle_momentum"
WARMUP_DECAY_LR = "WarmupDecayLR"
WARMUP_COSINE_LR = "WarmupCosineLR"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]


class _Schedule(LrScheduler):
    positional: tuple[str, ...] = ()
    rises_to_own = False  # whether warmup_max_lr is each group's own rate unless it is given

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
        if given.get("warmup_num_steps", 1) is None:
            raise ValueError(f"{name}: warmup_num_steps: got None, expected a positive integer")
        self.params = given
        basic = getattr(optimizer, "optimizer", optimizer)
        self.org_lrs = [float(group["lr"]) for group in basic.param_groups]
        super().__init__(basic, _parse(name, given))
        continued_from = given.get("last_batch_iteration", -1)
        if continued_from >= 0:
            self._applied = continued_from - self.last_batch_iteration
            self._last_lr = self._set()

    def __getattr__(self, name: str) -> Any:
        """Parameters under DeepSpeed's names: a value, or a list with one for each group."""
        known = _ATTRIBUTES.get(name)
        if name == "params" or known is None or known[0] not in type(self).positional:
            raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")
        key, default, per_group = known
        value = self.params.get(key)
        if value is None:
            value = self.org_lrs if name == "max_lrs" and self.rises_to_own else default
        return _by_group(value, len(self.org_lrs)) if per_group else value


def _by_group(value: Any, groups: int) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value] * groups


# Attributes: the parameter's name, its default, and whether each group has its own.
_ATTRIBUTES: dict[str, tuple[str, Any, bool]] = {
    "cos_min_ratio": ("cos_min_ratio", 0.0001, False),
    "cycle_momentum": ("cycle_momentum", True, False),
    "decay_lr_rate": ("decay_lr_rate", 0.0, False),
    "decay_mom_rate": ("decay_mom_rate", 0.0, False),
    "decay_step_size": ("decay_step_size", 0, False),
    "max_lrs": ("warmup_max_lr", 0.001, True),
    "min_lr": ("lr_range_test_min_lr", 0.001, True),
    "min_lrs": ("warmup_min_lr", 0.0, True),
    "staircase": ("lr_range_test_staircase", False, False),
    "step_rate": ("lr_range_test_step_rate", 1.0, False),
    "step_size": ("lr_range_test_step_size", 2000, False),
    "total_num_steps": ("total_num_steps", None, False),
    "warmup_min_ratio": ("warmup_min_ratio", 0.0, False),
    "warmup_num_steps": ("warmup_num_steps", 1000, False),
    "warmup_type": ("warmup_type", "log", False),
}


def _parse(name: str, params: dict[str, Any]) -> configuration.Config:
    """Checks all of `params`; the schedule starts at the beginning, from where it can continue."""
    configuration.parse({"scheduler": {"type": name, "params": params}})
    fresh = {key: value for key, value in params.items() if key != "last_batch_iteration"}
    return configuration.parse({"scheduler": {"type": name, "params": fresh}}).config


class _OfBatches(_Schedule):
    """Schedules whose step() calls its argument otherwise."""

    def step(self, batch_iteration: int | None = None) -> None:
        super().step(batch_iteration)


class LRRangeTest(_OfBatches):
    """A rising learning rate, to find the largest usable one."""

    positional = (
        "lr_range_test_min_lr",
        "lr_range_test_step_size",
        "lr_range_test_step_rate",
        "lr_range_test_staircase",
        "last_batch_iteration",
    )


class OneCycle(_OfBatches):
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

    def get_mom(self) -> list[tuple[float, float]] | None:
        """The betas of each group; None where momentum does not cycle.

        Before the first step the cycle's beginning, while groups begin at the other end, as there.
        """
        values = (self._schedule.values(self._applied, i)[1] for i in range(len(self._groups)))
        found = [betas for betas in values if betas is not None]
        if len(found) < len(self._groups):
            return None
        if self.last_batch_iteration >= 0:
            return found
        highest = _by_group(self.params.get("cycle_max_mom", 0.9), len(found))
        return [(beta, betas[1]) for beta, betas in zip(highest, found, strict=True)]

    def _second(self, what: str) -> Any:
        given = self.params.get(f"cycle_second_{what}")
        return getattr(self, f"first_{what}") if given is None else given


# The shape of the cycle, in steps, and the rates between which it goes.
_CYCLE: dict[str, Callable[[Any], Any]] = {
    "first_step_size": lambda one: float(one.params.get("cycle_first_step_size", 2000)),
    "second_step_size": lambda one: float(one._second("step_size")),
    "total_size": lambda one: one.first_step_size + one.second_step_size,
    "step_ratio": lambda one: one.first_step_size / one.total_size,
    "first_stair_count": lambda one: one.params.get("cycle_first_stair_count", 0),
    "second_stair_count": lambda one: one._second("stair_count"),
    "skip_lr_decay": lambda one: one.decay_step_size == 0 or one.decay_lr_rate == 0,
    "skip_mom_decay": lambda one: one.decay_step_size == 0 or one.decay_mom_rate == 0,
    "min_lrs": lambda one: _by_group(one.params["cycle_min_lr"], len(one._groups)),
    "max_lrs": lambda one: _by_group(one.params["cycle_max_lr"], len(one._groups)),
}
for _name, _get in _CYCLE.items():
    setattr(OneCycle, _name, property(_get))


class WarmupLR(_Schedule):
    """A warm-up to a constant rate."""

    rises_to_own = True
    positional = (
        "warmup_min_lr",
        "warmup_max_lr",
        "warmup_num_steps",
        "warmup_type",
        "last_batch_iteration",
    )


class WarmupDecayLR(WarmupLR):
    """A warm-up, then a linear decay to zero."""

    positional = ("total_num_steps", *WarmupLR.positional)
    rises_to_own = False


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

    def get_lr_ratio(self) -> float:
        """The current rate as a part of the optimizer's own; 0 before the first step."""
        return self.get_lr()[0] / self.org_lrs[0] if self.last_batch_iteration >= 0 else 0.0


_CLASSES = {
    kind.__name__: kind for kind in (LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR, WarmupCosineLR)
}


def maker_of(section: Mapping[str, Any] | None) -> Callable[[torch.optim.Optimizer], Any] | None:
    """Makes the schedule of a configuration's section; None if that is none of these."""
    section = section or {}
    kind = _CLASSES.get(section.get("type", ""))
    if kind is None:
        return None
    params = section.get("params") or {}
    return lambda optimizer: kind(optimizer, **params)


def get_torch_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The torch optimizer itself or, of one that wraps it, what is inside."""
    for found in (optimizer, getattr(optimizer, "optimizer", None)):
        if isinstance(found, torch.optim.Optimizer):
            return found
    raise TypeError(f"{type(optimizer).__name__} is not a subclass of torch.optim.Optimizer")


def update_lr(param_groups: list[dict[str, Any]], lrs: list[Any]) -> list[Any]:
    """Sets each group's rate, in place where it is a tensor; returns the rates."""
    for group, lr in zip(param_groups, lrs, strict=True):
        set_rate(group, lr)
    return [group["lr"] for group in param_groups]


# --- schedules chosen on the command line ---

# The options, with their defaults as there; a flag is one without a value.
_RANGE_TEST = {
    "lr_range_test_min_lr": 0.001,
    "lr_range_test_step_rate": 1.0,
    "lr_range_test_step_size": 1000,
    "lr_range_test_staircase": False,
}
_ONE_CYCLE = {
    "cycle_first_step_size": 1000,
    "cycle_first_stair_count": -1,
    "cycle_second_step_size": -1,
    "cycle_second_stair_count": -1,
    "decay_step_size": 1000,
    "cycle_min_lr": 0.01,
    "cycle_max_lr": 0.1,
    "decay_lr_rate": 0.0,
    "cycle_min_mom": 0.8,
    "cycle_max_mom": 0.9,
    "decay_mom_rate": 0.0,
    CYCLE_MOMENTUM: False,  # only with the flag, as in later versions of DeepSpeed
}
_WARMUP = {
    "warmup_min_lr": 0.0,
    "warmup_max_lr": 0.001,
    "warmup_num_steps": 1000,
    "warmup_type": "log",
}
_COSINE = {"warmup_min_ratio": 0.01, "cos_min_ratio": 0.01}
_OPTIONS: dict[str, Any] = {
    **_RANGE_TEST,
    **_ONE_CYCLE,
    **_WARMUP,
    **_COSINE,
}


def add_tuning_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --lr_schedule and the parameters of all schedules."""
    group = parser.add_argument_group(
        "Convergence Tuning", "the learning rate's schedule, for get_config_from_args"
    )
    group.add_argument("--lr_schedule", type=str, help=f"one of {', '.join(VALID_LR_SCHEDULES)}")
    for name, default in _OPTIONS.items():
        text = f"of the schedule (default: {default})"
        if isinstance(default, bool):
            group.add_argument(f"--{name}", action="store_true", help="of the schedule")
        else:
            group.add_argument(f"--{name}", type=type(default), default=default, help=text)
    return parser


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    """The schedule's options on this program's command line, and the rest of it."""
    return add_tuning_arguments(argparse.ArgumentParser()).parse_known_args()


def _override(*names: str) -> Callable[[Any, dict[str, Any]], None]:
    """Takes over into `params` what the arguments say; -1 stands for a default there."""

    def override(args: Any, params: dict[str, Any]) -> None:
        given = ((name, getattr(args, name, None)) for name in names)
        params.update((name, value) for name, value in given if value not in (None, -1))

    return override


override_lr_range_test_params = _override(*_RANGE_TEST)
override_1cycle_params = _override(*_ONE_CYCLE)
override_warmupLR_params = _override(*_WARMUP)  # noqa: N816 - DeepSpeed's name
override_warmupCosineLR_params = _override(  # noqa: N816 - DeepSpeed's name
    "warmup_num_steps", "warmup_type", *_COSINE
)
override_params = _override(*_RANGE_TEST, *_ONE_CYCLE, *_WARMUP, *_COSINE)
_OVERRIDES = {
    "LRRangeTest": override_lr_range_test_params,
    "OneCycle": override_1cycle_params,
    "WarmupCosineLR": override_warmupCosineLR_params,
}


def get_config_from_args(args: Any) -> tuple[dict[str, Any] | None, str | None]:
    """The section "scheduler" that the arguments describe, or None and why there is none."""
    name = getattr(args, "lr_schedule", None)
    if name is None:
        return None, "--lr_schedule not specified on command line"
    if name not in VALID_LR_SCHEDULES:
        return None, f"{name} is not supported LR schedule"
    params: dict[str, Any] = {}
    _OVERRIDES.get(name, override_warmupLR_params)(args, params)
    return {"type": name, "params": params}, None


def get_lr_from_config(config: Mapping[str, Any]) -> tuple[float | None, str]:
    """The rate that the section names, or None and why it names none."""
    for key in ("type", "params"):
        if key not in config:
            return None, f"LR schedule {key} not defined in config"
    name = config["type"]
    if name not in VALID_LR_SCHEDULES:
        return None, f"{name} is not a valid LR schedule"
    if name == "WarmupCosineLR":
        return None, f"{name} scales the optimizer's learning rate, so its params define none"
    keys = {"LRRangeTest": "lr_range_test_min_lr", "OneCycle": "cycle_max_lr"}
    return config["params"][keys.get(name, "warmup_max_lr")], ""
