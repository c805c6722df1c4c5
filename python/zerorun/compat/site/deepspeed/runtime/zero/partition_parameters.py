"""Names that scripts import, and the global that Hugging Face replaces around zero.Init."""

# ruff: noqa: F401 - scripts import these names from here

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import zerorun
from zerorun.model.partition import partition_of
from zerorun.zero import (
    GatheredParameters,
    ZeroParamStatus,
    register_external_parameter,
    unregister_external_parameter,
)

from deepspeed import comm
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.config import adapt_config, read_config
from deepspeed.runtime.zero import _parameter_attributes

_orig_torch_arange = torch.arange
partitioned_param_data_shape = [0]  # of a parameter that is not gathered


_parameter_attributes.install()


class Init(zerorun.zero.Init):
    """zerorun's, which makes torch's process group first, as scripts expect of DeepSpeed's.

    Layers draw their initial values in the 16-bit dtype, as they do there: random numbers of 16
    bits are others than rounded ones of 32. So what torch.empty makes within the block has that
    dtype, unless its caller names one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(zerorun.zero.Init).bind(*args, **kwargs).arguments
        if given.get("enabled", True):
            comm.init_distributed()
            for name in ("config_dict_or_path", "config"):
                if given.get(name) is not None:
                    given[name] = adapt_config(read_config(given[name]))
        super().__init__(**given)

    def __enter__(self) -> "Init":
        super().__enter__()
        self._torch_empty = torch.empty
        if self._enabled and self._dtype is not None:
            torch.empty = _empty_of(self._torch_empty, self._dtype)
        return self

    def __exit__(self, *error: Any) -> None:
        torch.empty = self._torch_empty
        super().__exit__(*error)


def _empty_of(fn: Callable[..., torch.Tensor], dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """torch.empty with another default dtype."""

    @functools.wraps(fn)
    def empty(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("dtype") is None and "out" not in kwargs:
            kwargs["dtype"] = dtype
        return fn(*args, **kwargs)

    return empty


def zero_wrapper_for_fp_tensor_constructor(
    fn: Callable[..., torch.Tensor], target_fp_dtype: torch.dtype, target_device: Any = None
) -> Callable[..., torch.Tensor]:
    """A constructor whose floating results have the target dtype and device.

    zerorun's Init changes none of those that buffers are made with: it converts a module's
    parameters when the module is complete, so rotary frequencies keep their precision whether this
    is replaced or not.
    """

    def construct(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("device") is None and target_device is not None:
            kwargs["device"] = target_device
        tensor = fn(*args, **kwargs)
        return tensor.to(target_fp_dtype) if tensor.is_floating_point() else tensor

    return construct


def is_zero_param(parameter: Any) -> bool:
    """True for a partitioned parameter."""
    return partition_of(parameter) is not None
