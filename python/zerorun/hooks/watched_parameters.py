"""A module's parameters at stage 3, which come and go: what sees to it that a read finds them.

While a call of the module's unit holds them, reads are those of a plain dictionary.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Protocol

import torch
from torch import nn

from zerorun.model.local_tensor import is_distributed, local_of

_EMPTY = torch.Size([0])


def is_empty(parameter: Any) -> bool:
    return parameter.shape == _EMPTY or (
        is_distributed(parameter) and local_of(parameter).shape == _EMPTY
    )


class Reads(Protocol):
    """Says what a read of a module's parameter gives."""

    def read(self, module: nn.Module, parameter: nn.Parameter) -> Any:
        """Outside of the calls of its unit."""

    def read_as_cast(self, parameter: nn.Parameter) -> Any:
        """By a product under autocast."""


class PlainParameters(dict[str, Any]):
    """A module's `_parameters` while they are full."""

    __slots__ = ("module", "reads")
    module: weakref.ref[nn.Module]
    reads: Reads

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class WatchedParameters(PlainParameters):
    """The same while nobody holds them for the module."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        parameter, module = super().__getitem__(name), self.module()
        if parameter is None or module is None:
            return parameter
        return self.reads.read(module, parameter)


class CastParameters(WatchedParameters):
    """The same under autocast, of a module that gives its parameters to a product."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        parameter, module = super().__getitem__(name), self.module()
        if (
            parameter is not None
            and module is not None
            and not torch.compiler.is_compiling()  # compiled code casts by itself
            and torch.is_autocast_enabled(parameter.device.type)
            # The product alone, which reads through nn.Module.__getattr__; hooks get the parameter.
            and sys._getframe(2).f_code is type(module).forward.__code__
        ):
            return self.reads.read_as_cast(parameter)
        return parameter
