"""A warning where a state dict cannot have an engine's parameters: at stage 3 their values come and
go."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from zerorun.model.left_behind import ModuleHook
from zerorun.model.local_tensor import local_of

__all__ = ["EMPTY_PARAMETERS", "EmptyStateWarnings"]

EMPTY_PARAMETERS = (
    "sharded at stage 3. engine.full_state_dict() is the whole model's, save_checkpoint saves all; "
    "within zerorun.zero.GatheredParameters(model.parameters()) a state dict is whole"
)


class EmptyStateWarnings:
    """Until remove(), warns when a state dict of the model, or of a module in it, has parameters
    that are empty. `names`: those of the sharded ones."""

    def __init__(self, model: nn.Module, names: set[str]) -> None:
        self._names = names
        whole = ModuleHook(self._look_at_model)
        self._handles = [model.register_state_dict_post_hook(whole)]
        for name, module in model.named_modules():
            if module is not model:
                hook = ModuleHook(self._look_at_part, f"{name}.")
                self._handles.append(module.register_state_dict_post_hook(hook))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _look_at_model(
        self, _module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any
    ) -> None:
        self._warn([name for name in self._names if _is_empty(state.get(prefix + name))])

    def _look_at_part(
        self, path: str, _module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any
    ) -> None:
        if prefix:  # of a state dict that has more, which is looked at when it is complete
            return
        own = [name.removeprefix(path) for name in self._names if name.startswith(path)]
        self._warn([name for name in own if _is_empty(state.get(name))])

    @staticmethod
    def _warn(empty: list[str]) -> None:
        if empty:
            more = f" and {len(empty) - 1} more are" if len(empty) > 1 else " is"
            warnings.warn(
                f"state_dict: {min(empty)}{more} empty, since they are {EMPTY_PARAMETERS}",
                stacklevel=5,
            )


def _is_empty(value: Any) -> bool:
    """True for values of a parameter that is empty; whoever keeps the parameter itself knows."""
    is_value = isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)
    return is_value and local_of(value).shape == torch.Size([0])
