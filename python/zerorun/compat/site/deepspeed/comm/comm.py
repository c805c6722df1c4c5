"""Functions that torch.distributed has under other names; the rest is in deepspeed.comm."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import P2POp, ProcessGroup, batch_isend_irecv

from deepspeed.comm._collectives import all_gather_into_tensor

__all__ = ["P2POp", "ProcessGroup", "batch_isend_irecv"]


def inference_all_reduce(
    tensor: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    **_options: Any,
) -> Any:
    return dist.all_reduce(tensor, op, group, async_op)


class _Handles:
    """Several collectives to wait for."""

    def __init__(self, handles: Sequence[Any]) -> None:
        self._handles = handles

    def wait(self) -> None:
        for handle in self._handles:
            handle.wait()


def all_gather_coalesced(
    output_tensors: Sequence[torch.Tensor],
    input_tensors: Sequence[torch.Tensor],
    group: Any = None,
    async_op: bool = False,
) -> _Handles | None:
    """all_gather_into_tensor of each pair."""
    handles = _Handles(
        [
            all_gather_into_tensor(output, part, group, async_op=True)
            for output, part in zip(output_tensors, input_tensors, strict=True)
        ]
    )
    if async_op:
        return handles
    return handles.wait()


def all_reduce_coalesced(
    tensors: Sequence[torch.Tensor],
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    **_options: Any,
) -> _Handles | None:
    """all_reduce of each tensor."""
    handles = _Handles([dist.all_reduce(tensor, op, group, async_op=True) for tensor in tensors])
    if async_op:
        return handles
    return handles.wait()


def get_all_ranks_from_group(group: Any = None) -> list[int]:
    return dist.get_process_group_ranks(group or dist.group.WORLD)
