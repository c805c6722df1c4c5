"""Warnings where PyTorch's own functions cannot do what they seem to do to an engine's parameters:
their gradients are the engine's, and at stage 3 their values come and go."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad

from zerorun.model.left_behind import ModuleHook
from zerorun.model.local_tensor import local_of

__all__ = ["EMPTY_PARAMETERS", "warn_of_clipping", "warn_of_empty_state"]

EMPTY_PARAMETERS = (
    "sharded at stage 3. engine.full_state_dict() is the whole model's, save_checkpoint saves all; "
    "within zerorun.zero.GatheredParameters(model.parameters()) a state dict is whole"
)
_CLIP = "_clip_grads_with_norm_"  # what clip_grad_norm_ calls, by whatever name that was imported


@functools.cache
def warn_of_clipping(belongs_to_engine: Callable[[torch.Tensor], bool]) -> None:
    """From the first call on, torch's clip_grad_norm_ of such parameters warns: it finds no
    gradients."""
    original = getattr(clip_grad, _CLIP, None)
    if original is None:  # another PyTorch
        return

    @functools.wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if any(p.grad is None and belongs_to_engine(p) for p in given):
            warnings.warn(
                "clip_grad_norm_ changes nothing: the gradients of an engine's parameters are the "
                "engine's. gradient_clipping in its configuration clips them in step(), and "
                "get_global_grad_norm() is their norm",
                stacklevel=4,
            )
        return original(given, *args, **kwargs)

    setattr(clip_grad, _CLIP, clip)


def warn_of_empty_state(model: nn.Module, names: set[str]) -> Any:
    """The handle of a hook that warns when a state dict of the model has parameters, of these
    names, that are empty."""

    def look(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
        empty = [name for name in names if _is_empty(state.get(prefix + name))]
        if empty:
            more = f" and {len(empty) - 1} more are" if len(empty) > 1 else " is"
            warnings.warn(
                f"state_dict: {min(empty)}{more} empty, since they are {EMPTY_PARAMETERS}",
                stacklevel=3,
            )

    return model.register_state_dict_post_hook(ModuleHook(look))


def _is_empty(value: Any) -> bool:
    """True for values of a parameter that is empty; whoever keeps the parameter itself knows."""
    is_value = isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)
    return is_value and local_of(value).shape == torch.Size([0])
