"""Tensors that ranks hold parts of, gathered by the program."""

import os
from collections.abc import Sequence
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


def align_dense_tensors(tensor_list: list[torch.Tensor], alignment: int) -> list[torch.Tensor]:
    """With a tensor of zeros behind, so that they have a multiple of `alignment` elements."""
    padding = -sum(tensor.numel() for tensor in tensor_list) % alignment
    return [*tensor_list, tensor_list[0].new_zeros(padding)] if padding else tensor_list


def all_gather_into_tensor_dp_groups(
    groups_flat: Sequence[torch.Tensor],
    partitioned_param_groups: Sequence[Sequence[torch.Tensor]],
    dp_process_group: Sequence[Any],
) -> None:
    """Fills each flat group with the ranks' parts of it. Collective."""
    for flat, parts, group in zip(
        groups_flat, partitioned_param_groups, dp_process_group, strict=True
    ):
        if dist.get_world_size(group) > 1:
            comm.all_gather_into_tensor(flat, parts[dist.get_rank(group)], group)


def all_gather_dp_groups(
    groups_flat: Sequence[torch.Tensor],
    partitioned_param_groups: Sequence[Sequence[torch.Tensor]],
    dp_process_group: Sequence[Any],
    start_alignment_factor: int,
    allgather_bucket_size: int,
) -> None:
    """Likewise, each group at once."""
    all_gather_into_tensor_dp_groups(groups_flat, partitioned_param_groups, dp_process_group)


def get_checkpoint_folder_size(save_dir: str, tag: str, local_rank: int | None = None) -> int:
    """The bytes of a tag's files on local ranks 0, added up on rank 0. Collective."""
    size = 0
    if local_rank == 0:
        for folder, _, names in os.walk(os.path.join(save_dir, tag)):
            size += sum(os.path.getsize(os.path.join(folder, name)) for name in names)
    total = torch.tensor(size, device=get_accelerator().device_name())
    dist.reduce(total, dst=0)
    return int(total)
