"""Names that scripts import, and the global that Hugging Face replaces around zero.Init."""

from collections.abc import Callable
from typing import Any

import torch
from zerorun.zero import GatheredParameters, Init, ZeroParamStatus
from zerorun.zero.partition import partition_of

from deepspeed.accelerator import get_accelerator

__all__ = [
    "GatheredParameters",
    "Init",
    "ZeroParamStatus",
    "get_accelerator",
    "is_zero_param",
    "zero_wrapper_for_fp_tensor_constructor",
]

_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(
    fn: Callable[..., torch.Tensor], target_fp_dtype: torch.dtype, target_device: Any = None
) -> Callable[..., torch.Tensor]:
    """A constructor whose floating results have the target dtype and device.

    zerorun's Init changes no constructor: it converts a module's parameters when the module is
    complete, so buffers (rotary frequencies) keep their precision whether this is replaced or not.
    """

    def construct(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("device") is None and target_device is not None:
            kwargs["device"] = target_device
        tensor = fn(*args, **kwargs)
        return tensor.to(target_fp_dtype) if tensor.is_floating_point() else tensor

    return construct


def is_zero_param(parameter: Any) -> bool:
    """Whether a parameter is partitioned."""
    return partition_of(parameter) is not None
