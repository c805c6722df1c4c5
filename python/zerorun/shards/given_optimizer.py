"""A program's optimizer while an engine steps for it."""

from __future__ import annotations

import contextlib
import functools
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from zerorun import _C

__all__ = ["SERVED", "GivenOptimizer"]

SERVED = ("step", "zero_grad", "state_dict", "load_state_dict", "add_param_group")
_ABSENT = object()


def _served(optimizer: torch.optim.Optimizer, engines: weakref.ref[Any], name: str) -> Any:
    @functools.wraps(getattr(type(engines()), name))  # accelerate looks at the signature
    def method(_self: Any, *args: Any, **kwargs: Any) -> Any:
        serving = engines()
        if serving is None:
            raise _C.ConfigError(f"{name}: what steps in this optimizer's place was deleted")
        return getattr(serving, name)(*args, **kwargs)

    # torch's schedulers wrap a step that is not marked so, and look for the mark later.
    method._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return types.MethodType(method, optimizer)


class GivenOptimizer:
    """What a program passed for an engine to step in the place of: from serve() to remove() all
    that it offers is the engine's, except within as_torchs()."""

    def __init__(self, optimizer: torch.optim.Optimizer, core: _C.Engine) -> None:
        self.optimizer = optimizer
        self._core = core
        self._steps = 0
        self._other: dict[str, Any] = {}  # the attributes that it does not have now

    def serve(self, engines: torch.optim.Optimizer) -> None:
        """`engines`: the optimizer that takes its place. This does not keep it, nor the engine."""
        self._steps = self._core.step_count
        reference = weakref.ref(engines)
        self._other = {name: _served(self.optimizer, reference, name) for name in SERVED}
        self._other["state"] = engines.state
        self._swap()

    def keep(self, engine: Any) -> None:
        """Lets the program's optimizer keep the engine, of which it may be all that is left."""
        self._other["_zerorun_engine"] = _ABSENT
        vars(self.optimizer)["_zerorun_engine"] = engine

    def forget_states(self) -> None:
        """Frees those that the engine has taken over, once a step has made others of them."""
        if self._other:
            self._other["state"].clear()

    def remove(self) -> None:
        """It is torch's own again, without the states that it had if these are of other values."""
        if not self._other:
            return
        if self._core.step_count != self._steps:
            self.forget_states()
        self._swap()
        self._other.clear()

    @contextlib.contextmanager
    def as_torchs(self) -> Iterator[None]:
        """For methods of its own, which may call others."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        attributes = vars(self.optimizer)
        for name, value in self._other.items():
            self._other[name] = attributes.pop(name, _ABSENT)
            if value is not _ABSENT:
                attributes[name] = value
