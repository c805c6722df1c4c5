"""A parameter that is empty on this rank unless somebody holds it: its full values on demand."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from zerorun import _C
from zerorun.parameter_memory import tensor_of, write_full

if TYPE_CHECKING:
    from zerorun.engine import ZeroEngine
    from zerorun.gather_hooks import SharedUnit

__all__ = ["EnginePartition", "Partition", "PrivatePartition", "ZeroParamStatus", "partition_of"]

_ids = itertools.count()
_ATTRIBUTE = "_zerorun_partition"


def _nothing() -> None:
    """What a copy or a pickle of a parameter has in the place of its partition."""


def left_behind(self: object) -> tuple[Callable[[], None], tuple[()]]:
    """For `__reduce__`: copies and pickles get None."""
    return _nothing, ()


class _Method:
    """A function as an attribute of a parameter, which stays behind when that is pickled."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        return self._function()

    __reduce__ = left_behind


class ZeroParamStatus(enum.Enum):
    """Whether a partitioned parameter is full on this rank; values as in DeepSpeed."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


def partition_of(parameter: Any) -> Partition | None:
    """The partition that manages a parameter, if one does."""
    return getattr(parameter, _ATTRIBUTE, None)


class Partition:
    """What :class:`GatheredParameters` and the ``ds_*`` attributes need; see the two below."""

    __reduce__ = left_behind

    def __init__(self, parameter: nn.Parameter, shape: torch.Size) -> None:
        self.parameter = parameter
        self.shape = shape
        self.numel = shape.numel()
        self._attach()

    def _attach(self) -> None:
        parameter = self.parameter
        setattr(parameter, _ATTRIBUTE, self)
        if not hasattr(parameter, "ds_id"):
            parameter.ds_id = next(_ids)
        parameter.ds_shape = self.shape
        parameter.ds_numel = self.numel
        parameter.ds_status = ZeroParamStatus.NOT_AVAILABLE
        parameter.ds_persist = False
        parameter.ds_active_sub_modules = set()
        parameter.ds_process_group = None
        parameter.partition_numel = _Method(self.local_numel)
        parameter.all_gather = _Method(self.acquire)
        parameter.partition = _Method(self.release)

    def detach(self) -> None:
        """The parameter is an ordinary one from now on."""
        names = ("ds_shape", "ds_numel", "ds_status", "ds_persist", "ds_active_sub_modules")
        methods = ("ds_process_group", "ds_tensor", "partition_numel", "all_gather", "partition")
        for name in (_ATTRIBUTE, *names, *methods):
            if hasattr(self.parameter, name):
                delattr(self.parameter, name)

    def local_numel(self) -> int:
        """Elements that this rank keeps."""
        raise NotImplementedError

    def acquire(self) -> None:
        """Makes ``parameter.data`` full; nested calls count."""
        raise NotImplementedError

    def release(self) -> None:
        raise NotImplementedError

    def store(self, values: torch.Tensor) -> None:
        """New full values, the same on every rank."""
        raise NotImplementedError

    def broadcast(self, values: torch.Tensor, root: int) -> None:
        """The root's values, in place. Collective."""
        raise NotImplementedError

    def gather_full(self) -> torch.Tensor:
        """A copy of the full values, in shape. Collective."""
        self.acquire()
        try:
            return self.parameter.detach().clone()
        finally:
            self.release()


class PrivatePartition(Partition):
    """A parameter before there is an engine: each rank keeps a part of it in its own memory."""

    def __init__(self, parameter: nn.Parameter, communicator: _C.Communicator) -> None:
        self._communicator = communicator
        self._holders = 0
        values = parameter.detach().flatten()
        world_size = communicator.world_size
        self._shard_numel = max(1, -(-values.numel() // world_size))
        begin = min(values.numel(), communicator.rank * self._shard_numel)
        self._own = slice(begin, min(values.numel(), begin + self._shard_numel))
        self._shard = values.new_zeros(self._shard_numel)
        super().__init__(parameter, parameter.shape)
        self.store(values)
        self._empty = values.new_empty(0)
        parameter.ds_tensor = self._shard
        parameter.data = self._empty

    def local_numel(self) -> int:
        return self._own.stop - self._own.start

    def acquire(self) -> None:
        self._holders += 1
        if self._holders > 1:
            return
        full = self._shard.new_empty(self._shard_numel * self._communicator.world_size)
        self._communicator.all_gather(self._shard, full, f"parameter {self.parameter.ds_id}")
        self.parameter.data = full[: self.numel].view(self.shape)
        self.parameter.ds_status = ZeroParamStatus.AVAILABLE

    def release(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            self.parameter.data = self._empty
            self.parameter.ds_status = ZeroParamStatus.NOT_AVAILABLE

    def store(self, values: torch.Tensor) -> None:
        own = values.detach().flatten()[self._own]
        self._shard[: own.numel()].copy_(own)

    def broadcast(self, values: torch.Tensor, root: int) -> None:
        self._communicator.broadcast(values, root, f"parameter {self.parameter.ds_id}")


class EnginePartition(Partition):
    """A parameter of a stage-3 engine."""

    def __init__(
        self,
        engine: ZeroEngine,
        unit: SharedUnit,
        parameter: nn.Parameter,
        intervals: list[_C.StateInterval],
    ) -> None:
        self._engine = engine
        self._unit = unit
        self._id = engine.layout.ids[parameter]
        self._full = unit.full[parameter]
        self._intervals = intervals  # this rank's
        super().__init__(parameter, self._full.shape)
        if not engine.core.is_sharded(self._id):
            parameter.ds_persist = True
            parameter.ds_status = ZeroParamStatus.AVAILABLE
        parts = [tensor_of(interval.param) for interval in self._intervals]
        parameter.ds_tensor = parts[0] if len(parts) == 1 else self._full.new_empty(0)

    def local_numel(self) -> int:
        return sum(interval.numel for interval in self._intervals)

    def acquire(self) -> None:
        self._unit.acquire()

    def release(self) -> None:
        # Whoever still holds the unit sees the engine's memory again.
        self.parameter.data = self._full
        self._unit.release()

    @property
    def _comes_and_goes(self) -> bool:
        return self._engine.core.full_place(self._id) is not None

    def gather_full(self) -> torch.Tensor:
        # What is always there needs no other rank, which may be gone when the engine ends.
        return super().gather_full() if self._comes_and_goes else self._full.clone()

    def store(self, values: torch.Tensor) -> None:
        flat = values.detach().flatten()
        if self._comes_and_goes:
            self._full.copy_(flat.view(self.shape))  # it may stay for the next use
        write_full(self._engine.core, self._id, flat)

    def watch(self, module: nn.Module) -> None:
        """The engine looks at what the module's forward reads."""
        self._engine.watch(module)

    def broadcast(self, values: torch.Tensor, root: int) -> None:
        label = f"parameter {self._engine.layout.names[self.parameter]}"
        self._engine.communicator.broadcast(values, root, label)
