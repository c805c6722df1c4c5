"""Attributes and hooks that copies and pickles of a model do not have."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from zerorun import _C

__all__ = ["InnerHook", "LeftBehind", "ModuleHook", "check_hooks_are_taken"]


def _replacement(kind: type[LeftBehind]) -> Any:
    return kind.in_copies


class LeftBehind:
    """An attribute of a parameter or a module that its copies and pickles do not have: they get
    `in_copies` instead."""

    in_copies: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _replacement, (type(self),)


def _no_hook(*_args: Any) -> None:
    """Replaces the hook in a copied or pickled module."""


def check_hooks_are_taken(model: nn.Module) -> None:
    """Raises ConfigError naming a module with parameters that takes no hooks."""
    for name, module in model.named_modules():
        own = next(module.parameters(recurse=False), None)
        if own is not None and isinstance(module, torch.jit.ScriptModule):
            raise _C.ConfigError(
                f"module {name or 'of the model'} was made by torch.jit, so it takes no hooks: "
                "they gather parameters at stage 3, and wait for them with "
                "zerorun.overlap_param_gather: use the module that it was made from "
                "(torch.compile may compile it), or a lower stage without that setting"
            )


class ModuleHook(LeftBehind):
    """A module hook that stays behind when the module is copied or pickled."""

    in_copies = staticmethod(_no_hook)

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._function, self._arguments = function, arguments
        self._untraced: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        # torch.compile splits its graph at a hook instead of tracing the engine. The compiler is
        # not imported for that into jobs that compile nothing.
        if self._untraced is None and "torch._dynamo" in sys.modules:
            dynamo = sys.modules["torch._dynamo"]
            self._untraced = dynamo.disable(self._function)
            # The module's call runs uncompiled then, and this function as part of it. It would be
            # compiled anew for every hook, up to the compiler's limit.
            for kind in (ModuleHook, InnerHook):
                dynamo.eval_frame.skip_code(kind.__call__.__code__)
        return (self._untraced or self._function)(*self._arguments, *args)

    __call__._torchdynamo_disable = True  # type: ignore[attr-defined]

    @classmethod
    def around(cls, module: nn.Module, before: ModuleHook, after: ModuleHook) -> list[Any]:
        """Puts the hooks before and after a module's forward; their handles."""
        return [
            module.register_forward_pre_hook(before, with_kwargs=True, prepend=True),
            module.register_forward_hook(after, always_call=True),
        ]


class InnerHook(ModuleHook):
    """A hook that compiled code leaves out: what it would do, the hook of a module around its own
    has done."""

    @classmethod
    def around(cls, module: nn.Module, before: ModuleHook, after: ModuleHook) -> list[Any]:
        """Both hooks have the same number on all modules. torch.compile looks at it: with others,
        each block of a model would be compiled for itself."""
        following = RemovableHandle.next_id
        RemovableHandle.next_id = -2
        try:
            return super().around(module, before, after)
        finally:
            RemovableHandle.next_id = following

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_compiling():
            return None
        return super().__call__(*args)
