"""A call of a module at stage 3: what is gathered for its forward, and again for its backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn

from zerorun import _C
from zerorun.hooks.autocast_copies import AutocastCopies
from zerorun.hooks.shared_unit import SharedUnit
from zerorun.model.local_tensor import is_distributed, local_of

Views = list[tuple[torch.Tensor, SharedUnit]]


class _Hooks(Protocol):
    """The hooks that made a call."""

    def opened(self, call: ModuleCall) -> None:
        """Its backward has begun."""

    def closed(self, call: ModuleCall) -> None:
        """Its backward has ended."""

    def keep(self, units: Sequence[SharedUnit]) -> None:
        """Keeps units full until the step."""


class ModuleCall:
    """One forward of a module, and the backward that belongs to it."""

    __slots__ = ("copies", "held", "hooks", "units")

    def __init__(self, hooks: _Hooks, copies: AutocastCopies | None = None) -> None:
        self.units: list[SharedUnit] = []  # the acquired ones
        self.hooks = hooks
        self.held: list[SharedUnit] | None = None  # by backward
        self.copies = copies  # under autocast, which may also begin within

    def add(self, units: Sequence[SharedUnit], autocast: bool = False) -> None:
        """`autocast`: it has begun within the call."""
        autocast = autocast or self.copies is not None
        for unit in units:
            unit.enter(autocast)
            unit.forwards += 1
            self.units.append(unit)

    def end(self) -> None:
        if self.copies is not None:
            self.copies.end_forward()
        for unit in self.units:
            unit.forwards -= 1
            unit.leave()

    def begin_backward(self, _grad: Any = None) -> None:
        if self.held is not None:
            return
        self.held = []
        self.hooks.opened(self)
        for unit in self.units:
            unit.enter(False)
            self.held.append(unit)
        if self.copies is not None:
            self.copies.hold()
        if torch.is_grad_enabled():  # create_graph: other nodes will read what these read
            self.hooks.keep(self.units)
            self.let_go()

    def end_backward(self, _grad: Any = None) -> None:
        if self.held is None:
            return
        held, self.held = self.held, None
        if self.copies is not None:
            self.copies.release()
        for unit in held:
            unit.leave()
        self.hooks.closed(self)

    def let_go(self) -> None:
        """Leaves autograd what was cast for it."""
        if self.copies is not None:
            self.copies.let_go()


_CALL = nn.Module._call_impl.__code__


def running_modules(frame: FrameType | None) -> list[nn.Module]:
    """The modules whose call is on Python's stack, the innermost first."""
    found = []
    while frame is not None:
        if frame.f_code is _CALL:
            found.append(frame.f_locals["self"])
        frame = frame.f_back
    return found


def refuse_fork(module: nn.Module) -> None:
    """For a call in another process than the hooks'."""
    raise _C.ConfigError(
        f"{type(module).__name__} was called in a process forked from a rank, as a worker "
        "of a DataLoader is: at stage 3 a gather needs the ranks themselves. Call the "
        "model in the training process, or give workers a copy that was made before"
    )


def views_in(tensors: Sequence[torch.Tensor], unit_in: Mapping[int, SharedUnit]) -> Views:
    """The tensors that lie in gathered memory, which is gone after the release. `unit_in`: by its
    storages."""
    found = []
    for tensor in tensors:
        try:
            plain = type(tensor) is torch.Tensor or not is_distributed(tensor)
            memory = tensor if plain else local_of(tensor)
            unit = unit_in.get(memory.untyped_storage()._cdata)
        except NotImplementedError:  # sparse ones, and those of torch.func's transforms
            continue
        if unit is not None:
            found.append((tensor, unit))
    return found
