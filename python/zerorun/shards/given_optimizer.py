"""A program's optimizer while an engine steps for it."""

import contextlib
import functools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from zerorun import _C
from zerorun import torch_seam as seam

SERVED = ("step", "zero_grad", "state_dict", "load_state_dict", "add_param_group", "__reduce_ex__")
_ABSENT = object()


def _served(optimizer: torch.optim.Optimizer, engines: weakref.ref[Any], name: str) -> Any:
    @functools.wraps(getattr(type(engines()), name))  # accelerate looks at the signature
    def method(_self: Any, *args: Any, **kwargs: Any) -> Any:
        serving = engines()
        if serving is None:
            raise _C.ConfigError(f"{name}: what steps in this optimizer's place was deleted")
        return getattr(serving, name)(*args, **kwargs)

    # torch's schedulers wrap a step that is not marked so, and look for the mark later.
    setattr(method, seam.WRAPPED_BY_SCHEDULER, True)
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

    def with_step_hooks(self, update: Callable[[], _C.StepResult]) -> _C.StepResult:
        """The step of a rule of the core's, in which torch has no part, with the hooks that the
        program registered for steps of its optimizer, and for those of all. Those after a step are
        not called for one that was skipped, as with torch's GradScaler."""
        seam.call_step_hooks(self.optimizer, seam.STEP_PRE_HOOKS)
        result = update()
        if result.applied:
            seam.call_step_hooks(self.optimizer, seam.STEP_POST_HOOKS)
        return result

    def state_dict(self, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `make` returns, with the hooks for the state dicts of the program's optimizer."""
        for hook in seam.hooks_of(self.optimizer, seam.STATE_DICT_PRE_HOOKS):
            hook(self.optimizer)
        made = make()
        for hook in seam.hooks_of(self.optimizer, seam.STATE_DICT_POST_HOOKS):
            changed = hook(self.optimizer, made)
            made = made if changed is None else changed
        return made

    def load_state_dict(
        self, load: Callable[[dict[str, Any]], None], state_dict: dict[str, Any]
    ) -> None:
        """Likewise, when they are loaded."""
        given = dict(state_dict)
        for hook in seam.hooks_of(self.optimizer, seam.LOAD_STATE_DICT_PRE_HOOKS):
            changed = hook(self.optimizer, given)
            given = given if changed is None else changed
        load(given)
        for hook in seam.hooks_of(self.optimizer, seam.LOAD_STATE_DICT_POST_HOOKS):
            hook(self.optimizer)

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
