"""The loss of a sequence whose parts are on several ranks."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
import torch.distributed as dist

from zerorun import _C
from zerorun.sequence.groups import current


class _WeightedMean(torch.autograd.Function):
    """The sum of loss * count over the group, divided by the sum of counts.

    Backward multiplies by the size of the group. Each rank's backward gives its own part of the
    gradient, of which the sum over the group is needed, but engines average over all ranks.
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
    """The mean loss over all tokens of a shared sequence, equal on all ranks that share it.

    `loss`: a scalar tensor, the mean over this rank's tokens with a label. `count`: the number of
    these tokens. Backward gives the gradient of the returned mean. Collective over the ranks that
    share a sequence. The loss of a sequence without any label is 0. Without sequence parallelism,
    other losses are returned as they are.
    """
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shown = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise _C.ConfigError(f"mean_over_sequence: loss: got {shown}, expected a scalar tensor")
    whole = isinstance(count, Real) and float(count).is_integer()
    if not isinstance(count, torch.Tensor) and not whole:
        raise _C.ConfigError(
            f"mean_over_sequence: count: got {count!r}, expected the number of tokens with a label"
        )
    groups = current()
    counts = torch.as_tensor(count, device=loss.device)
    if groups is None or groups.size == 1:
        return torch.where(counts > 0, loss, 0.0)  # the mean over no tokens is NaN
    return _WeightedMean.apply(loss, counts, groups.group)
