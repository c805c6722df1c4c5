"""Parameters that are sharded before there is an engine."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.host_memory import is_of_a_file, moved, pieces_of
from zerorun.model.dtypes import as_bytes
from zerorun.model.local_tensor import local_of
from zerorun.model.partition import OwnPart, Partition, partition_of

__all__ = ["PrivatePartition", "own_nbytes"]


def own_nbytes(parameter: nn.Parameter) -> int:
    """Host memory of this rank that a parameter leaves when an engine has its values: none of a
    file's."""
    partition = partition_of(parameter)
    kept = partition._kept if isinstance(partition, PrivatePartition) else local_of(parameter)
    if kept is None or kept.device.type != "cpu" or is_of_a_file(kept):
        return 0
    return kept.nbytes


class PrivatePartition(Partition):
    """A parameter before there is an engine: each rank keeps a part of it in its own memory."""

    _kept: torch.Tensor | None = None

    def __init__(
        self,
        parameter: nn.Parameter,
        communicator: _C.Communicator,
        ranks: tuple[int, ...] | None = None,
        home: torch.device | None = None,
        label: str = "",
    ) -> None:
        """`ranks`: those of the communicator in the job, where they are not all. `home`: the device
        of this rank's part; None: the parameter's. `label`: of the collective that gives every rank
        its part of the first rank's values; without it all ranks have the same values."""
        values = parameter.detach().flatten()
        self._manage(parameter, parameter.shape, communicator, ranks)
        self._kept = values.new_zeros(self._shard_numel, device=home)
        if label and communicator.world_size > 1:
            self._store_first(values, label)
        else:
            self.store(values)
        self.parameter.ds_tensor = self._shard.as_subclass(OwnPart)
        self.parameter.data = self._empty
        moved(values.nbytes)

    def _manage(
        self,
        parameter: nn.Parameter,
        shape: torch.Size,
        communicator: _C.Communicator,
        ranks: tuple[int, ...] | None,
    ) -> None:
        self._communicator = communicator
        self.ranks = ranks
        self._holders = 0
        numel = shape.numel()
        self._shard_numel = max(1, -(-numel // communicator.world_size))
        begin = min(numel, communicator.rank * self._shard_numel)
        self._own = slice(begin, min(numel, begin + self._shard_numel))
        self._empty = parameter.detach().new_empty(0)
        Partition.__init__(self, parameter, shape)

    def _write_own(self, shard: torch.Tensor, begin: int, piece: torch.Tensor) -> None:
        """Writes what is this rank's of a piece."""
        first = max(begin, self._own.start)
        last = min(begin + piece.numel(), self._own.stop)
        if first < last:
            at = first - self._own.start
            shard[at : at + last - first].copy_(piece[first - begin : last - begin])

    def _store_first(self, values: torch.Tensor, label: str) -> None:
        """Takes the first rank's values, in pieces, so that others need no memory for all."""
        values = values.resolve_conj().resolve_neg()
        is_first = self._communicator.rank == 0
        for begin, end in pieces_of(values.numel(), values.element_size()):
            piece = values[begin:end] if is_first else values.new_empty(end - begin)
            self._communicator.broadcast(piece.view(torch.uint8), 0, label)
            self._write_own(self._shard, begin, piece)

    def pieces(self) -> Iterator[tuple[int, torch.Tensor]]:
        """The full values where parts are kept: flat pieces, and where each begins. Collective."""
        world_size, shard_numel = self._communicator.world_size, self._shard_numel
        label = f"parameter {self.parameter.ds_id}"
        pieces = list(pieces_of(shard_numel, self._shard.element_size() * world_size))
        memory = self._shard.new_empty(world_size * pieces[0][1])
        for begin, end in pieces:
            count = end - begin
            rows = memory[: world_size * count]
            self._communicator.all_gather(as_bytes(self._shard[begin:end]), as_bytes(rows), label)
            if count == shard_numel:
                yield 0, rows[: self.numel]
                return
            for rank, piece in enumerate(rows.view(world_size, count)):
                at = rank * shard_numel + begin
                if at < self.numel:
                    yield at, piece[: self.numel - at]

    @property
    def _shard(self) -> torch.Tensor:
        """This rank's part, with padding."""
        assert self._kept is not None
        return self._kept

    @property
    def available(self) -> bool:
        return self._holders > 0

    def local_numel(self) -> int:
        return self._own.stop - self._own.start

    def acquire(self) -> None:
        self._holders += 1
        if self._holders > 1:
            return
        full = self._shard.new_empty(self._shard_numel * self._communicator.world_size)
        label = f"parameter {self.parameter.ds_id}"
        self._communicator.all_gather(as_bytes(self._shard), as_bytes(full), label)
        self.parameter.data = full[: self.numel].view(self.shape).to(self._empty.device)

    def release(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            self.parameter.data = self._empty

    def store(self, values: torch.Tensor) -> None:
        own = values.detach().flatten()[self._own]
        self._shard[: own.numel()].copy_(own)

    def broadcast(self, values: torch.Tensor, root: int) -> None:
        self._communicator.broadcast(as_bytes(values), root, f"parameter {self.parameter.ds_id}")

    def copy(self, memo: dict[int, Any]) -> nn.Parameter:
        """Partitioned like this one while this one is empty."""
        partitioned = not self.available
        made = super().copy(memo)
        if partitioned:
            PrivatePartition(made, self._communicator, self.ranks, self._shard.device)
        return made
