"""Attributes and hooks that copies and pickles of a model do not have."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from zerorun import _C, torch_seam
from zerorun.lazy_names import when_imported


def _replacement(kind: type["Uncopied"]) -> Any:
    return kind.in_copies


class Uncopied:
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


def _compiler_that_runs() -> Callable[[], Any]:
    """A function that gives None outside of what torch.compile's code calls. Of older versions the
    answer is whether there is a compiler at all; where torch_seam.check() raises there is none."""
    if torch_seam.KNOWS_COMPILER:
        return getattr(torch._C._dynamo.eval_frame, torch_seam.COMPILER, lambda: None)
    return lambda: sys.modules.get("torch._dynamo")


_compiled_caller = _compiler_that_runs()


@functools.cache
def _stay_uncompiled() -> None:
    """A module's call runs uncompiled where it has hooks, and the functions of ModuleHook as part
    of it. They would be compiled anew for every hook, up to the compiler's limit, and be an error
    with ``fullgraph=True``."""

    def skip(compiler: Any) -> None:
        for function in (ModuleHook.__call__, ModuleHook._call_untraced):
            compiler.skip_code(function.__code__)

    when_imported("torch._dynamo.eval_frame", skip)


class ModuleHook(Uncopied):
    """A module hook that stays behind when the module is copied or pickled."""

    in_copies = staticmethod(_no_hook)

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = functools.partial(function, *arguments)
        self._untraced: Callable[..., Any] | None = None
        _stay_uncompiled()

    def __call__(self, *args: Any) -> Any:
        # torch.compile splits its graph at a hook instead of tracing the engine.
        if _compiled_caller() is None:
            return self._call(*args)
        return self._call_untraced(*args)

    __call__._torchdynamo_disable = True  # type: ignore[attr-defined]

    def _call_untraced(self, *args: Any) -> Any:
        if self._untraced is None:
            dynamo = sys.modules["torch._dynamo"]
            untraced = dynamo.disable(self._call.func)
            self._untraced = functools.partial(untraced, *self._call.args)
        return self._untraced(*args)
