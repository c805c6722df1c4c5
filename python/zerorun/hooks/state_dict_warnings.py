"""A warning where a state dict cannot have an engine's parameters: at stage 3 their values come and
go."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import torch
from torch import nn

from zerorun.model.local_tensor import local_of
from zerorun.model.uncopied import ModuleHook
from zerorun.program_warning import warn

EMPTY_PARAMETERS = (
    "sharded at stage 3. engine.full_state_dict() is the whole model's, save_checkpoint saves all; "
    "within zerorun.zero.GatheredParameters(model.parameters()) a state dict is whole"
)


class EmptyStateWarnings:
    """Until remove(), warns when a state dict of the model, of a module in it, or of what one of
    them is in, has parameters that are empty: once for each dictionary."""

    def __init__(self, model: nn.Module, sharded: set[nn.Parameter]) -> None:
        self._last: weakref.ref[Any] | None = None  # the dictionary that was warned of
        self._handles = []
        for module in model.modules():
            names = {name for name, p in module.named_parameters(recurse=False) if p in sharded}
            if names:
                hook = ModuleHook(self._look_at, names)
                self._handles.append(module.register_state_dict_post_hook(hook))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _look_at(
        self, names: set[str], _module: nn.Module, state: Any, prefix: str, _metadata: Any
    ) -> None:
        empty = sorted(name for name in names if _is_empty(state.get(prefix + name)))
        if not empty or (self._last is not None and self._last() is state):
            return
        with contextlib.suppress(TypeError):  # a plain dictionary of the caller's
            self._last = weakref.ref(state)
        warn(
            f"state_dict: {prefix}{empty[0]} is empty, as others may be, since it is "
            f"{EMPTY_PARAMETERS}"
        )


def _is_empty(value: Any) -> bool:
    """True for values of a parameter that is empty; whoever keeps the parameter itself knows."""
    is_value = isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)
    return is_value and local_of(value).shape == torch.Size([0])
