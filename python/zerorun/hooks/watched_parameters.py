"""A module's parameters that are gathered when another module's forward reads them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from zerorun.model.local_tensor import is_distributed, local_of

__all__ = ["WatchedParameters", "is_empty"]

_EMPTY = torch.Size([0])


def is_empty(parameter: Any) -> bool:
    return parameter.shape == _EMPTY or (
        is_distributed(parameter) and local_of(parameter).shape == _EMPTY
    )


class WatchedParameters(dict[str, Any]):
    """A module's `_parameters`: an empty parameter that another module's forward reads is gathered
    for that forward, without having been registered as external. `read`: what a read gives under
    autocast."""

    def __init__(
        self,
        module: nn.Module,
        fetch: Callable[[Any], None],
        read: Callable[[nn.Module, Any], Any] | None,
    ) -> None:
        super().__init__(module._parameters)
        self._fetch, self._read = fetch, read
        self._module = weakref.ref(module)

    def __getitem__(self, name: str) -> Any:
        parameter = super().__getitem__(name)
        if parameter is None:
            return None
        if is_empty(parameter):
            self._fetch(parameter)
        elif (
            self._read is not None
            and not torch.compiler.is_compiling()  # compiled code casts by itself
            and torch.is_autocast_enabled(parameter.device.type)
        ):
            module = self._module()
            # The product alone, which reads through nn.Module.__getattr__; hooks get the parameter.
            if module is not None and sys._getframe(2).f_code is type(module).forward.__code__:
                return self._read(module, parameter)
        return parameter

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)
