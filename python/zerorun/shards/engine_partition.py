"""A parameter of a stage-3 engine, which the engine's hooks make full and empty again."""

from __future__ import annotations

import torch
from torch import nn

from zerorun import _C
from zerorun.hooks.gather_hooks import GatherHooks
from zerorun.hooks.parameter_memory import tensor_of, write_full
from zerorun.hooks.shared_unit import SharedUnit
from zerorun.model.dtypes import as_bytes
from zerorun.model.partition import OwnPart, Partition


class EnginePartition(Partition):
    """A parameter that belongs to a unit; it is full while the unit is."""

    in_engine = True

    def __init__(
        self,
        hooks: GatherHooks,
        communicator: _C.Communicator,
        unit: SharedUnit,
        parameter: nn.Parameter,
        intervals: list[_C.StateInterval],
    ) -> None:
        self.home = self._hooks = hooks
        self._communicator = communicator
        self.unit = unit
        self._id = hooks.layout.ids[parameter]
        self._full = unit.full[parameter]
        self._intervals = intervals  # this rank's
        super().__init__(parameter, self._full.shape)
        self.parameter.ds_persist = not self._is_sharded
        parts = [tensor_of(interval.param) for interval in intervals]
        own = parts[0] if len(parts) == 1 else self._full.new_empty(0)
        self.parameter.ds_tensor = own.as_subclass(OwnPart)

    @property
    def _is_sharded(self) -> bool:
        return self._hooks.core.is_sharded(self._id)

    @property
    def _comes_and_goes(self) -> bool:
        return self._hooks.core.full_place(self._id) is not None

    @property
    def available(self) -> bool:
        return self.unit.available or not self._is_sharded

    def local_numel(self) -> int:
        nbytes = sum(tensor_of(interval.param).nbytes for interval in self._intervals)
        return nbytes // self._full.element_size()

    def acquire(self) -> None:
        self.unit.acquire()

    def release(self) -> None:
        self.unit.release()

    @property
    def comes_alone(self) -> bool:
        return self._comes_and_goes and not self.unit.available

    @property
    def is_read_in_place(self) -> bool:
        return self._is_sharded

    def is_stored_in(self, data: torch.Tensor) -> bool:
        return data.data_ptr() == self._full.data_ptr()

    def gather_full(self) -> torch.Tensor:
        # Memory that is always there needs no other rank, which may be gone when the engine ends.
        return super().gather_full() if self._comes_and_goes else self._full.clone()

    def store(self, values: torch.Tensor) -> None:
        shaped = values.detach().view(self.shape)
        if self._comes_and_goes:
            self._full.copy_(shaped)  # it may stay for the next use
        write_full(self._hooks.core, self._id, self._hooks.layout.flat(self.parameter, shaped))

    def watch(self, module: nn.Module) -> None:
        self._hooks.hook(module)
        self._hooks.need(self.parameter, module)  # it may be running

    def broadcast(self, values: torch.Tensor, root: int) -> None:
        label = f"parameter {self._hooks.layout.names[self.parameter]}"
        self._communicator.broadcast(as_bytes(values), root, label)
