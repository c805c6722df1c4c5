"""`model.zero_grad()` of a model whose gradients are an engine's."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch import nn

from zerorun.model.left_behind import LeftBehind


def _of_its_class(module: nn.Module) -> Any:
    return types.MethodType(type(module).zero_grad, module)


class ModuleZeroGrad(LeftBehind):
    """Takes the place of a module's method until remove(), so that it reaches the engine too.

    A loss that goes through a model of another engine (a discriminator) leaves gradients there,
    which the program forgets in this way. Copies and pickles of the module have its class's method.
    """

    def __init__(self, module: nn.Module, zero_grad: Callable[[], None]) -> None:
        self._module, self._zero_grad = module, zero_grad
        vars(module)["zero_grad"] = self

    def __call__(self, set_to_none: bool = True) -> None:
        _of_its_class(self._module)(set_to_none)
        self._zero_grad()

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_its_class, (self._module,)

    def remove(self) -> None:
        vars(self._module).pop("zero_grad", None)
