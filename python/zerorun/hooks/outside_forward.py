"""What a program may use at stage 3 outside of the forward of modules: methods of other names, as
``model.encode(x)``, and full parameters with a backward."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.hooks.gather_hooks import GatherHooks
from zerorun.model.partition import partition_of


class _MethodCall(nn.Module):
    """Takes the hooks of a method, which a module itself has for its forward alone."""

    def __init__(self, function: Callable[..., Any], hooks: GatherHooks) -> None:
        super().__init__()
        self.function, self.hooks = function, weakref.ref(hooks)

    def forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self.function(module, *args, **kwargs)


def register_forward_method(module: nn.Module, name: str) -> None:
    """From here on calls of the method `name` gather what they read at stage 3, as calls of
    `module` do, and its results have a backward.

    Only methods that use parameters of `module` itself need it: those of modules that they call
    are gathered anyway. May be called before and after zerorun.initialize. The same as FSDP2's
    ``register_fsdp_forward_method``. Raises ConfigError for what is no method of a module.
    """
    method: Any = getattr(module, name, None)
    if not isinstance(module, nn.Module) or getattr(method, "__self__", None) is not module:
        raise _C.ConfigError(
            f"register_forward_method: got {type(module)} and {name!r}, expected a module and the "
            "name of a method of it"
        )
    function = method.__func__
    # Of a module and its copies, whose memory they must not hold.
    calls: weakref.WeakKeyDictionary[nn.Module, _MethodCall] = weakref.WeakKeyDictionary()

    @functools.wraps(function)
    def gathering(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        hooks = None if torch.compiler.is_compiling() else _hooks_of(self)
        if hooks is None:
            return function(self, *args, **kwargs)
        call = calls.get(self)
        if call is None or call.hooks() is not hooks:
            call = calls[self] = _MethodCall(function, hooks)
            whole = [unit for unit in hooks.units if unit.name and unit.module is self]
            hooks.hook(call, whole or hooks.own_units(self))
        return call(self, *args, **kwargs)

    setattr(module, name, types.MethodType(gathering, module))


def full_tensor(parameter: nn.Parameter) -> torch.Tensor:
    """A copy of the whole parameter at every stage, whose backward gives the parameter gradients:
    for a penalty on weights, say. The same as ``full_tensor()`` of FSDP2's parameters.

    Every rank calls it. The parameter itself is full only meanwhile, and for its gradient.
    """
    if not isinstance(parameter, nn.Parameter):
        raise _C.ConfigError(f"full_tensor: got {type(parameter)}, expected a parameter")
    partition = partition_of(parameter)
    hooks = None if partition is None else partition.home
    if isinstance(hooks, GatherHooks):
        return hooks.copy(parameter, hooks.unit_of[parameter])
    if partition is not None:
        raise _C.ConfigError(
            "full_tensor: the parameter is partitioned by zero.Init and belongs to no engine: read "
            "it within zerorun.zero.GatheredParameters"
        )
    return parameter.clone()


def _hooks_of(module: nn.Module) -> GatherHooks | None:
    """Of the engine that shards the module."""
    found = map(partition_of, module.parameters())
    hooks = next((partition.home for partition in found if partition is not None), None)
    return hooks if isinstance(hooks, GatherHooks) else None
