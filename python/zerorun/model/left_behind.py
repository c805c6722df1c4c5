"""Attributes and hooks that copies and pickles of a model do not have."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["LeftBehind", "ModuleHook"]


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
            self._untraced = sys.modules["torch._dynamo"].disable(self._function)
        return (self._untraced or self._function)(*self._arguments, *args)

    __call__._torchdynamo_disable = True  # type: ignore[attr-defined]
