"""Process groups: all ranks average gradients; with Ulysses several of them share a sequence."""

from typing import Any

import torch.distributed as dist
from zerorun import sequence


def _get_data_parallel_group() -> Any:
    return dist.group.WORLD


def _get_data_parallel_world_size() -> int:
    return dist.get_world_size()


def _get_data_parallel_rank() -> int:
    return dist.get_rank()


def _get_sequence_parallel_world_size() -> int:
    groups = sequence.current()
    return 1 if groups is None else groups.size


def _get_sequence_parallel_rank() -> int:
    groups = sequence.current()
    return 0 if groups is None else groups.rank


def _get_sequence_parallel_group() -> Any:
    groups = sequence.current()
    if groups is None:
        raise KeyError("No sequence parallel group found")
    return groups.group


_get_sequence_data_parallel_group = _get_data_parallel_group
_get_sequence_data_parallel_world_size = _get_data_parallel_world_size
_get_sequence_data_parallel_rank = _get_data_parallel_rank
get_data_parallel_group = _get_data_parallel_group
get_data_parallel_world_size = _get_data_parallel_world_size
get_data_parallel_rank = _get_data_parallel_rank
