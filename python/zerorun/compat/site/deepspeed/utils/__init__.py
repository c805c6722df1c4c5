"""deepspeed.utils."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from zerorun.dataloader import RepeatingLoader
from zerorun.zero import (
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_full_optimizer_state,
    safe_get_local_fp32_param,
    safe_get_local_grad,
    safe_get_local_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_grad,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_grad,
    safe_set_local_optimizer_state,
)

from deepspeed.comm import is_initialized
from deepspeed.utils import groups
from deepspeed.utils.logging import log_dist, logger

__all__ = [
    "OnDevice",
    "RepeatingLoader",
    "get_z3_leaf_modules",
    "groups",
    "instrument_w_nvtx",
    "is_initialized",
    "log_dist",
    "logger",
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "safe_get_local_fp32_param",
    "safe_get_local_grad",
    "safe_get_local_optimizer_state",
    "safe_set_full_fp32_param",
    "safe_set_full_grad",
    "safe_set_full_optimizer_state",
    "safe_set_local_fp32_param",
    "safe_set_local_grad",
    "safe_set_local_optimizer_state",
    "set_z3_leaf_modules",
    "unset_z3_leaf_modules",
    "z3_leaf_module",
]

_leaves: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def _matching(model: nn.Module, classes: list[type | str]) -> list[nn.Module]:
    """Modules of the classes, given as such or by name."""
    found = [
        module
        for module in model.modules()
        if any(
            type(module).__name__ == wanted
            or f"{type(module).__module__}.{type(module).__qualname__}" == wanted
            if isinstance(wanted, str)
            else isinstance(module, wanted)
            for wanted in classes
        )
    ]
    if not found:
        raise ValueError(f"No modules of type {classes} found in model {type(model).__name__}")
    return found


def set_z3_leaf_modules(model: nn.Module, leaf_module_classes: list[type | str]) -> list[nn.Module]:
    """Remembered only: modules that some ranks skip are no danger here, leaf or not."""
    found = _matching(model, leaf_module_classes)
    _leaves.update(found)
    return found


def unset_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: list[type | str]
) -> list[nn.Module]:
    found = _matching(model, leaf_module_classes)
    _leaves.difference_update(found)
    return found


def get_z3_leaf_modules(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if z3_leaf_module(module)]


def z3_leaf_module(model: nn.Module) -> bool:
    return model in _leaves


def instrument_w_nvtx(function: Callable[..., Any]) -> Callable[..., Any]:
    """No profiler ranges."""
    return function


@contextlib.contextmanager
def OnDevice(  # noqa: N802 - DeepSpeed's name
    dtype: torch.dtype, device: str = "meta", enabled: bool = True
) -> Iterator[None]:
    """Tensors made within are of `dtype` on `device`."""
    if not enabled:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)
