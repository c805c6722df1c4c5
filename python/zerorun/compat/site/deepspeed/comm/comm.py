"""Functions that torch.distributed has under other names; the rest is in deepspeed.comm."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import P2POp, ProcessGroup, batch_isend_irecv

__all__ = ["P2POp", "ProcessGroup", "batch_isend_irecv"]


def inference_all_reduce(
    tensor: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    **_options: Any,
) -> Any:
    return dist.all_reduce(tensor, op, group, async_op)


def get_all_ranks_from_group(group: Any = None) -> list[int]:
    return dist.get_process_group_ranks(group or dist.group.WORLD)
