"""The section of ZeRO."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class ZeroStageEnum(IntEnum):
    """Stages of ZeRO."""

    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3
    max_stage = 3


def get_zero_config(param_dict: Mapping[str, Any]) -> Any:
    """The section of a configuration as an object; `true` and `false` are its older form."""
    from deepspeed.runtime.config_utils import section_class

    given = param_dict.get("zero_optimization") or {}
    values = {"stage": 1} if given is True else given
    return section_class("runtime.zero.config.DeepSpeedZeroConfig")(**values)
