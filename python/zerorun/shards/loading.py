"""Moving a model's values into an engine, parameter by parameter."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import all_or_none
from zerorun.hooks.parameter_memory import tensor_of, to_write
from zerorun.host_memory import PIECE, forget_pages, moved, pieces_of
from zerorun.model.engine_ranks import EngineRanks
from zerorun.model.local_tensor import local_of
from zerorun.model.model_layout import DTYPES, ModelLayout
from zerorun.model.partition import partition_of
from zerorun.model.private_partition import PrivatePartition


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
