"""Tensors that ranks hold parts of, gathered by the program."""

from typing import Any

import torch
import torch.distributed as dist

from deepspeed import comm
from deepspeed.accelerator import get_accelerator


def partition_uniform(num_items: int, num_parts: int) -> list[int]:
    """Where each of the parts begins, and the end; the first parts are larger by one at most."""
    size, larger = divmod(num_items, num_parts)
    return [part * size + min(part, larger) for part in range(num_parts + 1)]


class PartitionedTensor:
    """This rank's part of a tensor that all ranks of a group have at first."""

    def __init__(self, tensor: torch.Tensor, group: Any, partition_meta: Any = None) -> None:
        self.group = group
        self.num_parts, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.orig_size, self.orig_device = list(tensor.shape), tensor.device
        self.partition = partition_uniform(tensor.numel(), self.num_parts)
        begin, end = self.partition[self.rank : self.rank + 2]
        self.local_data = tensor.detach().flatten()[begin:end].clone()

    @classmethod
    def from_meta(
        cls, meta: torch.Tensor, local_part: torch.Tensor, group: Any, device: Any = None
    ) -> "PartitionedTensor":
        """The counterpart of to_meta() and data()."""
        dimensions, *numbers = meta.tolist()
        size, (parts, rank, *partition) = numbers[:dimensions], numbers[dimensions:]
        found = cls(torch.empty(0), group)
        if (parts, rank) != (found.num_parts, found.rank):
            raise AssertionError(
                f"PartitionedTensor.from_meta: got part {rank} of {parts}, but this is rank "
                f"{found.rank} of {found.num_parts}"
            )
        found.orig_size, found.partition = size, partition
        found.orig_device = device or get_accelerator().device_name()
        found.local_data = local_part.detach()
        return found

    def to_meta(self) -> torch.Tensor:
        """Shape, number of parts, rank and where the parts begin, as one tensor of integers."""
        numbers = [len(self.orig_size), *self.orig_size, self.num_parts, self.rank]
        return torch.tensor([*numbers, *self.partition], device=self.orig_device)

    def full(self, device: Any = None) -> torch.Tensor:
        """The whole tensor. Collective."""
        kept, sizes = self.local_data, self.partition
        parts = [kept.new_empty(sizes[i + 1] - sizes[i]) for i in range(self.num_parts)]
        for rank, part in enumerate(parts):
            if rank == self.rank:
                part.copy_(kept)
            dist.broadcast(part, comm.get_global_rank(self.group, rank), self.group)
        return torch.cat(parts).view(self.orig_size).to(device or self.orig_device)

    def data(self) -> torch.Tensor:
        return self.local_data

    def local_size(self) -> torch.Size:
        return self.local_data.shape

    def full_size(self) -> list[int]:
        return self.orig_size
