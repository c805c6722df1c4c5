"""The groups of sequence parallelism, as an mpu."""

from typing import Any

import torch.distributed as dist
import zerorun
from zerorun import sequence


def initialize_sequence_parallel(sequence_parallel_size: int) -> None:
    """Ranks [i * size, (i + 1) * size) share each sequence from here on. Collective."""
    if sequence_parallel_size <= 1:
        raise zerorun.ConfigError(
            f"sequence_parallel_size must be greater than 1, got {sequence_parallel_size}"
        )
    sequence.start(sequence_parallel_size)


def _groups() -> sequence.SequenceGroups:
    groups = sequence.current()
    assert groups is not None, "sequence parallel group is not initialized"
    return groups


get_sequence_parallel_group = get_model_parallel_group = lambda: _groups().group
get_sequence_parallel_world_size = get_model_parallel_world_size = lambda: _groups().size
get_sequence_parallel_rank = get_model_parallel_rank = lambda: _groups().rank


def get_sequence_data_parallel_group() -> Any:
    """All ranks: states are sharded over them, and gradients averaged."""
    _groups()
    return dist.group.WORLD


def get_sequence_data_parallel_world_size() -> int:
    return dist.get_world_size(get_sequence_data_parallel_group())


def get_sequence_data_parallel_rank() -> int:
    return dist.get_rank(get_sequence_data_parallel_group())
