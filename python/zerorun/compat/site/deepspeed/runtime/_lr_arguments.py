"""Schedules chosen on the command line."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

SCHEDULES = ["LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"]
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
    "cycle_momentum": False,
    **_WARMUP,
    **_COSINE,
}


def add_tuning_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --lr_schedule and the parameters of all schedules."""
    group = parser.add_argument_group(
        "Convergence Tuning", "the learning rate's schedule, for get_config_from_args"
    )
    group.add_argument("--lr_schedule", type=str, help=f"one of {', '.join(SCHEDULES)}")
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
    def override(args: Any, params: dict[str, Any]) -> None:
        """Takes over into `params` what the arguments say; -1 stands for a default there."""
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
    if name not in SCHEDULES:
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
    if name not in SCHEDULES:
        return None, f"{name} is not a valid LR schedule"
    if name == "WarmupCosineLR":
        return None, f"{name} scales the optimizer's learning rate, so its params define none"
    keys = {"LRRangeTest": "lr_range_test_min_lr", "OneCycle": "cycle_max_lr"}
    return config["params"][keys.get(name, "warmup_max_lr")], ""
