"""Stages 1 and 2: a step leaves the gathers of updated parameters under way, and the first use of a
parameter waits for its bucket's.

From the step to that use a parameter is an :class:`UpdatedParameter`, which PyTorch asks before
every function that gets one, wherever it is used. Modules whose code is not PyTorch's may hand
their parameters to code that does not ask: they wait before their forward. Where something else
shares a parameter's memory (a tensor of before the step), or is not seen (compiled code), the step
waits itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.model.left_behind import LeftBehind, ModuleHook
from zerorun.model.model_layout import ModelLayout

__all__ = ["UpdatedParameter", "UpdatedParameters"]

_BUCKET = "_zerorun_updated"
_OWN_USES = 2  # of a parameter's storage: its own, and that of whoever asks

# What tells nothing of a parameter's values.
_GETTERS = (
    *("device", "dtype", "grad", "grad_fn", "is_cpu", "is_cuda", "is_leaf", "layout", "ndim"),
    *("requires_grad", "shape"),
)
_GRAD: Any = torch.Tensor.grad
_HARMLESS = {
    *(getattr(torch.Tensor, name).__get__ for name in _GETTERS),
    _GRAD.__set__,
    _GRAD.__delete__,
    torch.Tensor.dim,
    torch.Tensor.is_floating_point,
    torch.Tensor.numel,
    torch.Tensor.size,
}


class _Bucket(LeftBehind):
    """The parameters whose new values come together."""

    def __init__(self, core: _C.Engine) -> None:
        self.core = core
        self.parameters: list[nn.Parameter] = []
        self.index = -1  # of one of them
        self.is_updating = False

    def begin(self) -> None:
        self.is_updating = True
        for parameter in self.parameters:
            parameter.__class__ = UpdatedParameter

    def finish(self) -> None:
        if not self.is_updating:
            return
        self.is_updating = False
        for parameter in self.parameters:
            parameter.__class__ = nn.Parameter
        if not self.core.closed:
            self.core.finish_updates(self.index)

    def is_shared(self) -> bool:
        """True if other tensors have a part of the memory."""
        count = torch._C._storage_Use_Count
        return any(count(p.untyped_storage()._cdata) > _OWN_USES for p in self.parameters)


def _finish(found: Any) -> None:
    for one in found:
        if type(one) is UpdatedParameter:
            getattr(one, _BUCKET).finish()
        elif isinstance(one, (list, tuple)):
            _finish(one)
        elif isinstance(one, dict):
            _finish(one.values())


class UpdatedParameter(nn.Parameter):
    """A parameter whose new values are on their way."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func not in _HARMLESS:
            _finish(args)
            _finish((kwargs or {}).values())
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        _finish((self,))
        return self.__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        _finish((self,))
        return self.__reduce_ex__(protocol)


def _is_compiling() -> bool:
    """True if torch.compile has compiled anything: its code looks at a parameter's type."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


class UpdatedParameters:
    """The parameters of an engine that a step leaves to be waited for."""

    def __init__(
        self, core: _C.Engine, layout: ModelLayout, parameters: Iterable[nn.Parameter]
    ) -> None:
        self._core = core
        self._handles: list[Any] = []
        buckets: dict[int, _Bucket] = {}
        for parameter in parameters:
            if not layout.is_trainable(parameter):
                continue
            index = layout.ids[parameter]
            bucket = buckets.setdefault(core.gradient_bucket(index), _Bucket(core))
            bucket.parameters.append(parameter)
            bucket.index = index
        plain = [b for b in buckets.values() if all(type(p) is nn.Parameter for p in b.parameters)]
        self._others = [b.index for b in buckets.values() if b not in plain]
        self._buckets = plain
        for bucket in plain:
            for parameter in bucket.parameters:
                setattr(parameter, _BUCKET, bucket)

    def attach(self, model: nn.Module) -> None:
        """Lets the modules of `model` that are not PyTorch's wait for their own parameters."""
        for module in model.modules():
            if type(module).__module__.startswith("torch.nn."):
                continue
            own = [getattr(p, _BUCKET) for p in module.parameters(False) if hasattr(p, _BUCKET)]
            if own:
                hook = ModuleHook(_before_forward, list(dict.fromkeys(own)))
                self._handles.append(module.register_forward_pre_hook(hook))

    def step(self) -> _C.StepResult:
        """The engine's step. Collective."""
        if not self._buckets:
            return self._core.step()
        self.finish()
        result = self._core.step(leave_updates=True)
        if not self._core.is_updating:
            return result
        if _is_compiling():
            self._core.finish_updates()
            return result
        for index in self._others:
            self._core.finish_updates(index)
        for bucket in self._buckets:
            if bucket.is_shared():
                self._core.finish_updates(bucket.index)
            else:
                bucket.begin()
        return result

    def finish(self) -> None:
        """Ends it for all of them."""
        for bucket in self._buckets:
            bucket.finish()

    def remove(self) -> None:
        """Leaves the parameters as they were found."""
        self.finish()
        for handle in self._handles:
            handle.remove()
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                if getattr(parameter, _BUCKET, None) is bucket:
                    delattr(parameter, _BUCKET)


def _before_forward(buckets: Sequence[_Bucket], *_call: Any) -> None:
    for bucket in buckets:
        bucket.finish()
