"""What is known of a gradient that was not finite, after the step that it skipped."""

from __future__ import annotations

import logging

import torch

from zerorun import _C
from zerorun.hooks.parameter_memory import tensor_of
from zerorun.shards.shards import Shards

_logger = logging.getLogger("zerorun")
_NONE = 1 << 62


def tell_skipped(shards: Shards, step: int, result: _C.StepResult, losses: list[float]) -> None:
    """Logs a line on rank 0. `losses`: this rank's, of the batch. Collective, but for a dynamic
    loss scale, which is found by skipping steps."""
    precision = shards.settings.precision
    scales = precision.param_dtype == "fp16" or precision.scales_loss
    if scales and precision.loss_scaler.static_scale == 0:
        if shards.ranks.job.rank == 0:
            then, now = result.loss_scale, shards.core.loss_scale
            text = "step %d was skipped: the gradient overflowed at loss scale %g%s"
            _logger.info(text, step, then, "" if then == now else f", which is now {now:g}")
        return
    job = shards.ranks.job
    finite = bool(torch.tensor(losses).isfinite().all())
    first = torch.tensor([_first_parameter(shards), _NONE if finite else job.rank])
    job.all_reduce(first, "min", "a gradient that is not finite")
    seen = torch.tensor([len(losses)])
    job.all_reduce(seen, "max", "losses of a skipped step")
    if job.rank > 0:
        return
    found, rank = first.tolist()
    part, index = divmod(found, 1 << 32)
    names = {i: shards.layout.names[parameter] for parameter, i in shards.layout.ids.items()}
    where = f", first that of {names[index]}" if index in names else ""
    if found != _NONE and part != shards.ranks.part:
        where = f", first in part {part} of the model"
    because = "" if rank == _NONE else f"; the loss of rank {rank} was not finite"
    if rank == _NONE and int(seen) > 0:
        because = "; the losses of all ranks were finite"
    _logger.warning(
        "step %d was skipped on all ranks: the gradient is not finite%s%s", step, where, because
    )


def _first_parameter(shards: Shards) -> int:
    """The first parameter with an element that is not finite, of those that this rank stores, which
    are sums over the ranks: its part of the model and its index there."""
    for interval in shards.core.state_intervals():
        if interval.grad is not None and not tensor_of(interval.grad).isfinite().all():
            return shards.ranks.part << 32 | interval.parameter
    return _NONE
