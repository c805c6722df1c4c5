"""The scalars of a step, under DeepSpeed's names."""

from __future__ import annotations

from typing import Any

from zerorun.metrics.lines import is_figure
from zerorun.monitor.monitors import Event

_PREFIX = "Train/Samples/"
# Scalars of every step; those that a step does not know are left out.
_NAMES = {
    "train_loss": "loss",
    "lr": "lr",
    "grad_norm": "grad_norm",
    "samples_per_sec": "samples_per_s",
    "tokens_per_sec": "tokens_per_s",
}
_TIMES = {
    "elapsed_time_ms_forward": "forward_ms",
    "elapsed_time_ms_backward": "backward_ms",
    "elapsed_time_ms_backward_allreduce": "reduce_ms",
    "elapsed_time_ms_step": "call_ms",
}


def step_events(
    metrics: dict[str, Any], *, loss_scale: bool = False, times: bool = False
) -> list[Event]:
    """The events of a step, by the samples of all ranks so far; in a file of ``zerorun train``,
    which does not count samples, by its step.

    `loss_scale`: training is in fp16. `times`: `wall_clock_breakdown` is on.
    """
    names = dict(_NAMES)
    if loss_scale:
        names["loss_scale"] = "loss_scale"
    if times:
        names |= _TIMES
    position = metrics.get("samples", metrics["step"])
    events = [
        (f"{_PREFIX}{name}", metrics[key], position)
        for name, key in names.items()
        if is_figure(metrics.get(key))
    ]
    backward, reduce = metrics.get("backward_ms"), metrics.get("reduce_ms")
    if times and is_figure(backward) and is_figure(reduce):
        inner = max(0.0, backward - reduce)
        events.append((f"{_PREFIX}elapsed_time_ms_backward_inner", inner, position))
    return events
