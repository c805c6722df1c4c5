"""`.grad` of an engine's parameters at stage 0, between backward and step, as there."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from zerorun import ConfigError, ZeroEngine, torch_seam
from zerorun.model.uncopied import Uncopied
from zerorun.shards.shards import Shards
from zerorun.shards.state_access import StateAccess

_ATTRIBUTE = "_zerorun_shown_gradients"
_base = torch.Tensor.grad
_showing: weakref.WeakSet["ShownGradients"] = weakref.WeakSet()


class ShownGradients(Uncopied):
    """The averaged gradients of an engine's parameters, made when a program reads them.

    They are there from the backward on that completes a batch, multiplied by the loss scale. What
    the program changes counts in the step: values in place, another tensor, or None, which leaves
    the parameter out of the step. Every rank has to do the same. So do gradients that it assigns
    without a backward, of which the step takes the average.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._parameters = [p for p in shards.layout.names if shards.layout.is_trainable(p)]
        # By parameter: what the program has, and its version when it was made; None: changed.
        self._shown: dict[nn.Parameter, tuple[torch.Tensor | None, int | None]] = {}
        self._stepping = False
        for parameter in self._parameters:
            setattr(parameter, _ATTRIBUTE, self)
        _showing.add(self)
        # Costs nothing until somebody reads it.
        torch_seam.replace(nn.Parameter, "grad", property(_get, _set, _delete))
        shards.until_closed(self)

    def remove(self) -> None:
        """Parameters have their own gradients from here on."""
        for parameter in self._parameters:
            vars(parameter).pop(_ATTRIBUTE, None)
        _showing.discard(self)
        if not _showing and "grad" in vars(nn.Parameter):
            del nn.Parameter.grad  # PyTorch's own is there again

    def get(self, parameter: nn.Parameter) -> torch.Tensor | None:
        if not self._is_there():
            return None
        if parameter not in self._shown:
            gradient = StateAccess(self._shards).get_whole_gradient(parameter)
            made = (gradient * self._shards.core.loss_scale).to(parameter.dtype)
            self._shown[parameter] = made, made._version
        return self._shown[parameter][0]

    def set(self, parameter: nn.Parameter, value: torch.Tensor | None) -> bool:
        """True if `value` is the engine's affair now."""
        if not self._is_there():
            return False
        self._shown[parameter] = value, None
        return True

    def _is_there(self) -> bool:
        core = self._shards.core
        in_backward = torch._C._current_graph_task_id() >= 0
        if self._stepping or in_backward or core.phase == "idle" or not core.is_last_micro_step:
            return False
        if core.phase == "open":
            return self._shards.finish_reduction()
        self._write_changed()  # nothing to ask the other ranks, who may not read
        return True

    def finish(self, reduce: Callable[[], bool]) -> bool:
        """As the engine's finish_reduction, `reduce`, with what the program has changed."""
        if self._shards.core.phase == "open":
            self.forget()  # what was made before this backward
        is_there = reduce()
        if is_there:
            self._write_changed()
        return is_there

    def _write_changed(self) -> None:
        self._write({p: value for p, value in self._changed().items() if value is not None})

    def _changed(self) -> dict[nn.Parameter, torch.Tensor | None]:
        return {
            parameter: value
            for parameter, (value, version) in self._shown.items()
            if value is None or version != value._version
        }

    def forget(self) -> None:
        """Drops what was made, before another backward adds to it."""
        changed = [self._shards.layout.names[p] for p in self._changed()]
        self._shown.clear()
        if changed:
            raise ConfigError(
                f"the .grad of {changed[0]} was changed between two backward passes of one step: "
                "change gradients after the last one"
            )

    def drop(self) -> None:
        """The batch is dropped."""
        self._shown.clear()

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """A step, which begins with what the program has changed."""
        left_out = list(self._changed()) if self._is_there() else []  # those that are None
        self._write(dict.fromkeys(left_out))
        self._shown.clear()
        self._stepping = True
        try:
            for parameter in left_out:
                parameter.requires_grad_(False)  # the step leaves it alone
            # Gradients that the program has made without a backward become the step's.
            if self._shards.core.phase == "idle" and self._shards.core.is_last_micro_step:
                for parameter in self._parameters:
                    if _base.__get__(parameter) is not None:
                        index = self._shards.layout.ids[parameter]
                        self._shards.collector.hook(index)(parameter)
            yield
        finally:
            self._stepping = False
            for parameter in left_out:
                parameter.requires_grad_(True)

    def _write(self, changed: dict[nn.Parameter, torch.Tensor | None]) -> None:
        if not changed:
            return
        scale = self._shards.core.loss_scale
        StateAccess(self._shards).set_whole_gradients(
            (p, torch.zeros_like(p) if value is None else value.float() / scale)
            for p, value in changed.items()
        )
        for parameter, value in changed.items():
            self._shown[parameter] = value, None if value is None else value._version


class EngineWithGradients(ZeroEngine):
    """An engine whose parameters have a `.grad` at stage 0; at the others it is None there too."""

    _shown: ShownGradients | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        replicated = self.zero_optimization_stage() == 0
        self._shown = ShownGradients(self._shards) if replicated else None

    def backward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self._shown is None:
            return super().backward(*args, **kwargs)
        self._shown.forget()
        loss = super().backward(*args, **kwargs)
        if self.global_steps == 0:  # later ones know how many contributions to wait for
            self._core.reduce_late_gradients()
        return loss

    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        if self._shown is not None and self._core.phase == "idle":
            self._is_scaled = True  # what a program assigns has the loss scale already
        with self._shown.stepping() if self._shown is not None else contextlib.nullcontext():
            super().step(lr_kwargs)

    def _finish_reduction(self) -> bool:
        shown, reduce = self._shown, super()._finish_reduction
        return reduce() if shown is None else shown.finish(reduce)

    def drop_batch(self) -> None:
        if self._shown is not None:
            self._shown.drop()
        super().drop_batch()


def _get(parameter: nn.Parameter) -> torch.Tensor | None:
    own = _base.__get__(parameter)
    shown = None if own is not None else vars(parameter).get(_ATTRIBUTE)
    return own if shown is None else shown.get(parameter)


def _set(parameter: nn.Parameter, value: torch.Tensor | None) -> None:
    _base.__set__(parameter, value)  # checks it
    shown = vars(parameter).get(_ATTRIBUTE)
    if shown is not None and shown.set(parameter, value):
        _base.__set__(parameter, None)


def _delete(parameter: nn.Parameter) -> None:
    _set(parameter, None)
