"""A warning where a state dict cannot have an engine's parameters: at stage 3 their values come and
go."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from zerorun.model.left_behind import ModuleHook
from zerorun.model.local_tensor import local_of

__all__ = ["EMPTY_PARAMETERS", "warn_of_empty_state"]

EMPTY_PARAMETERS = (
    "sharded at stage 3. engine.full_state_dict() is the whole model's, save_checkpoint saves all; "
    "within zerorun.zero.GatheredParameters(model.parameters()) a state dict is whole"
)


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
