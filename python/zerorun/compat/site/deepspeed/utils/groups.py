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


# --- model and expert parallelism, of which there is none ---


def get_model_parallel_world_size() -> int:
    return 1


def get_model_parallel_rank() -> int:
    return 0


def get_tensor_model_parallel_src_rank() -> int:
    return dist.get_rank()


_get_model_parallel_world_size = get_model_parallel_world_size
_get_expert_model_parallel_world_size = get_model_parallel_world_size
get_tensor_model_parallel_world_size = get_model_parallel_world_size
get_tensor_model_parallel_rank = get_model_parallel_rank


def _get_broadcast_src_rank() -> int:
    return 0


def _get_data_parallel_group_ranks() -> list[int]:
    return dist.get_process_group_ranks(_get_data_parallel_group())


def _get_expert_parallel_group_dict() -> dict[str, Any]:
    return {}


_get_expert_data_parallel_group_dict = _get_expert_parallel_group_dict


def _zero_param_parallel_is_initialized() -> bool:
    """Whether there are secondary partitions (zero_hpz_partition_size)."""
    return False


def initialize(ep_size: int = 1, mpu: Any = None) -> None:
    """Nothing to make without expert parallelism."""
    if ep_size != 1 or mpu is not None:
        raise NotImplementedError(
            f"deepspeed.utils.groups.initialize(ep_size={ep_size}): expert and model parallelism "
            "are not part of zerorun; all ranks are data-parallel"
        )
