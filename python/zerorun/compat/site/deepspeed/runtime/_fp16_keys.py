"""How DeepSpeed reads the section fp16: numbers may be quoted, and some count only at times."""

import math
from collections.abc import Mapping
from typing import Any

from deepspeed.runtime._config_errors import DeepSpeedConfigError

_NUMBERS = {
    "loss_scale": "a number",
    "initial_scale_power": "an integer",
    "loss_scale_window": "an integer",
    "hysteresis": "an integer",
    "min_loss_scale": "an integer",
}
_OF_DYNAMIC_SCALE = ("loss_scale_window", "min_loss_scale")


def with_numbers(fp16: Mapping[str, Any]) -> dict[str, Any]:
    """The section with numbers for quoted ones. DeepSpeedConfigError for what is none."""
    found = dict(fp16)
    for key in _NUMBERS.keys() & found.keys():
        if found[key] != "auto":
            found[key] = _number(key, found[key])
    return found


def _number(key: str, value: Any) -> int | float:
    kind = float if key == "loss_scale" else int
    try:
        if isinstance(value, bool) or not math.isfinite(float(value)):
            raise ValueError
        number = kind(value) if isinstance(value, str) else value
    except (TypeError, ValueError):
        raise DeepSpeedConfigError(f"/fp16/{key}: got {value!r}, must be {_NUMBERS[key]}") from None
    if key == "loss_scale" and number < 0:
        raise DeepSpeedConfigError(f"/fp16/{key}: got {value!r}, must be >= 0 (0: it changes)")
    return number


def is_dynamic(fp16: Mapping[str, Any]) -> bool:
    """True where the loss scale changes while training."""
    return bool(fp16.get("enabled")) and fp16.get("loss_scale") in (None, 0, "auto")


def check_dynamic(fp16: Mapping[str, Any]) -> None:
    """Raises DeepSpeedConfigError for numbers with which a dynamic scale could not change."""
    for key in _OF_DYNAMIC_SCALE if is_dynamic(fp16) else ():
        if fp16.get(key, 1) != "auto" and fp16.get(key, 1) <= 0:
            raise DeepSpeedConfigError(
                f"/fp16/{key}: got {fp16[key]}, expected more than 0 with a dynamic loss scale "
                "(loss_scale 0)"
            )


def as_read(fp16: Mapping[str, Any]) -> dict[str, Any]:
    """The section without what has no effect there."""
    found = with_numbers(fp16)
    check_dynamic(found)
    ignored = () if is_dynamic(found) else _OF_DYNAMIC_SCALE
    return {key: value for key, value in found.items() if key not in ignored}
