"""The section of ZeRO, and its enumerations."""

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Any


class ZeroStageEnum(IntEnum):
    """Stages of ZeRO."""

    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3
    max_stage = 3


class OffloadDeviceEnum(str, Enum):
    """The devices that can store states."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OffloadStateTypeEnum(str, Enum):
    """Kinds of states."""

    optim_states = "optim_states"
    hp_params = "hp_params"
    lp_params = "lp_params"
    lp_grads = "lp_grads"
    contiguous_grad_buffer = "contiguous_grad_buffer"


def get_zero_config(param_dict: Mapping[str, Any]) -> Any:
    """The section of a configuration as an object; `true` and `false` are its older form."""
    from deepspeed.runtime.config_utils import section_class

    given = param_dict.get("zero_optimization") or {}
    values = {"stage": 1} if given is True else given
    return section_class("runtime.zero.config.DeepSpeedZeroConfig")(**values)
