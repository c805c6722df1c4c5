"""ProgressLines: what `steps_per_print` and `wall_clock_breakdown` print, in DeepSpeed's form."""

import logging
import sys
from collections.abc import Callable
from typing import Any

# DeepSpeed's names of the parts of a step.
_PARTS = {
    "fwd": "forward_ms",
    "bwd": "backward_ms",
    "bwd_inner": None,
    "bwd_allreduce": "reduce_ms",
    "step": "call_ms",
}


def _number(value: float | None, digits: int = 2) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"


class ProgressLines:
    """A listener that prints a line every `steps` steps, and with `breakdown` one about the times
    of each step. `momenta` tells the groups' momenta now."""

    def __init__(
        self, steps: int | None, breakdown: bool, momenta: Callable[[], list[Any]]
    ) -> None:
        self._steps, self._breakdown, self._momenta = steps, breakdown, momenta

    def __call__(self, metrics: dict[str, Any]) -> None:
        if self._steps is not None and metrics["step"] % self._steps == 0:
            announce(self._progress(metrics))
        if self._breakdown:
            announce(self._times(metrics))

    def _progress(self, metrics: dict[str, Any]) -> str:
        line = (
            f"step={metrics['step']}, skipped={metrics['skipped_steps']}, lr={metrics['lrs']}, "
            f"mom={self._momenta()}"
        )
        if metrics["loss"] is not None:
            line += f", loss={metrics['loss']:.6g}"
        line += f", samples/s={metrics['samples_per_s']:.1f}"
        if metrics["skipped"]:
            line += f", skipped: the gradient is not finite at loss scale {metrics['loss_scale']:g}"
        return line

    @staticmethod
    def _times(metrics: dict[str, Any]) -> str:
        backward, reduce = metrics["backward_ms"], metrics["reduce_ms"]
        inner = None if backward is None else max(0.0, backward - reduce)
        times = {name: inner if key is None else metrics[key] for name, key in _PARTS.items()}
        parts = " | ".join(f"{name}: {_number(value)}" for name, value in times.items())
        return (
            f"time (ms) | {parts} | gather: {_number(metrics['gather_ms'])} | "
            f"optimizer: {_number(metrics['optimizer_ms'])} | "
            f"other: {_number(metrics['other_ms'])}"
        )


def announce(line: str) -> None:
    """Through the logger `zerorun` where somebody listens to it, else on the error stream."""
    logger = logging.getLogger("zerorun")
    if logger.hasHandlers() and logger.isEnabledFor(logging.INFO):
        logger.info("%s", line)
    else:
        print(f"[zerorun] {line}", file=sys.stderr, flush=True)
