"""Parameters of an engine: how their values come in, and how those of stage 3 come and go."""

from collections.abc import Iterator

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import all_or_none
from zerorun.hooks.gather_hooks import GatherHooks
from zerorun.hooks.parameter_memory import tensor_of, to_write, write_full
from zerorun.hooks.shared_unit import SharedUnit
from zerorun.host_memory import PIECE, forget_pages, moved, pieces_of
from zerorun.model.dtypes import as_bytes
from zerorun.model.engine_ranks import EngineRanks
from zerorun.model.local_tensor import local_of
from zerorun.model.model_layout import DTYPES, ModelLayout
from zerorun.model.partition import OwnPart, Partition, partition_of
from zerorun.model.private_partition import PrivatePartition


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

    @property
    def is_held(self) -> bool:
        return self.unit.available  # also of one that stays full

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


# --- how their values come in, parameter by parameter ---


class Loading:
    """Fills an engine's masters and parameters with the model's values, those of the first rank
    that has them.

    They come in pieces, for which all ranks have memory before any gives up a value: an error for
    lack of it leaves every rank's model whole. Of parameters that are partitioned, pieces are
    allocated on the way.
    """

    def __init__(
        self,
        engine: _C.Engine,
        layout: ModelLayout,
        ranks: EngineRanks,
        device: torch.device,
        *,
        round_masters: bool,
    ) -> None:
        """Collective. `round_masters`: masters get the values that the parameters have in their
        own dtype, in which they then go to the GPU."""
        self._engine, self._layout, self._ranks = engine, layout, ranks
        self._device, self._round_masters = device, round_masters
        sizes = (n.numel() * self._sent_as(p, p.dtype).itemsize for p, n in layout.shapes.items())
        with all_or_none(ranks.job, "initialize"):
            nbytes = min(PIECE, max(sizes, default=0))
            self._staging = torch.empty(nbytes, dtype=torch.uint8, device=device)

    def __iter__(self) -> Iterator[nn.Parameter]:
        """Loads all parameters. Yields each when the engine has its values, on this rank in full
        where it keeps parameters in full; its own memory may go then. Collective."""
        for parameter in to_write(self._engine, self._layout):
            self._load(parameter)
            yield parameter
            moved(self._layout.shapes[parameter].numel() * parameter.element_size())
        self._engine.refresh_from_masters()

    def _is_staged(self, parameter: nn.Parameter) -> bool:
        own = partition_of(parameter) is None
        return own and self._device.type != "cpu" and local_of(parameter).device.type == "cpu"

    def _sent_as(self, parameter: nn.Parameter, own: torch.dtype) -> torch.dtype:
        rounded = self._is_staged(parameter) and self._round_masters
        rounded = rounded and parameter not in self._layout.own_dtype
        return DTYPES[self._engine.param_dtype] if rounded else own

    @torch.no_grad()
    def _load(self, parameter: nn.Parameter) -> None:
        partition = partition_of(parameter)
        if partition is None:
            for begin, values in self._pieces_of_first(parameter):
                self._write(parameter, begin, values)
        elif isinstance(partition, PrivatePartition) and not partition.available:
            for begin, values in partition.pieces():
                flat = self._layout.flat(parameter, values)
                self._write(parameter, begin * flat.numel() // max(1, values.numel()), flat)
        else:
            self._write(parameter, 0, self._layout.flat(parameter, local_of(parameter)))

    def _pieces_of_first(self, parameter: nn.Parameter) -> Iterator[tuple[int, torch.Tensor]]:
        """The values of the first rank that has the parameter: flat pieces, and where each begins.
        Collective."""
        values = self._layout.flat(parameter, local_of(parameter))
        communicator = self._ranks.holding(self._layout.ranks_of.get(parameter, 0))
        staged = self._is_staged(parameter)
        dtype = self._sent_as(parameter, values.dtype)
        is_first = communicator.rank == 0
        on_gpu = self._device.type != "cpu"
        broadcast = communicator.broadcast_on_gpu if on_gpu else communicator.broadcast
        label = f"initial values of {self._layout.names[parameter]}"
        for begin, end in pieces_of(values.numel(), dtype.itemsize):
            piece = values[begin:end]
            if staged or not is_first:
                piece = self._staging[: (end - begin) * dtype.itemsize].view(dtype)
            if staged and is_first:
                piece.copy_(values[begin:end])
            if communicator.world_size > 1:
                broadcast(piece, 0, label)
            yield begin, piece
            forget_pages(values[begin:end])

    def _write(self, parameter: nn.Parameter, begin: int, values: torch.Tensor) -> None:
        """Elements from `begin` on."""
        index = self._layout.ids[parameter]
        end = begin + values.numel()
        if not self._engine.is_sharded(index):
            tensor_of(self._engine.parameter(index))[begin:end].copy_(values)
        for interval in self._engine.state_intervals(index):
            first = max(begin, interval.begin)
            last = min(end, interval.begin + interval.numel)
            if first >= last:
                continue
            place = slice(first - interval.begin, last - interval.begin)
            part = values[first - begin : last - begin]
            parameter_part = tensor_of(interval.param)[place].copy_(part)
            if interval.master is not None:
                master = tensor_of(interval.master)[place]
                master.copy_(parameter_part if self._round_masters else part)
