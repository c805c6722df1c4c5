"""The loss of a sequence whose parts lie on several ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from zerorun.sequence.groups import current

__all__ = ["mean_over_sequence"]


class _WeightedMean(torch.autograd.Function):
    """Sum of loss * count over the group by the sum of counts.

    Engines average gradients over all ranks, and each rank's backward gives its own part of the
    gradient: times the group's size, the average over the group is their sum.
    """

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, count: torch.Tensor, group: Any) -> torch.Tensor:
        has_any = count > 0  # the mean over no tokens is NaN
        weighted = torch.where(has_any, loss.double() * count, torch.zeros_like(loss.double()))
        sums = torch.stack([weighted, count.double()])
        dist.all_reduce(sums, group=group)
        total = sums[1].clamp(min=1)
        ctx.weight = (count / total * dist.get_world_size(group)).to(loss.dtype)
        return (sums[0] / total).to(loss.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradients[0] * ctx.weight, None, None


def mean_over_sequence(loss: torch.Tensor, count: torch.Tensor | int) -> torch.Tensor:
    """The mean loss of all tokens of the ranks' shared sequences, the same on each of them.

    `loss`: the mean over this rank's `count` tokens that have a label, both scalars; its backward
    gives the gradient of the mean over all. Collective over the ranks that share a sequence.
    """
    groups = current()
    if groups is None or groups.size == 1:
        return loss
    counts = torch.as_tensor(count, device=loss.device)
    return _WeightedMean.apply(loss, counts, groups.group)
