"""Columns: figures by step, thinned out so that a page can show any number of them."""

from __future__ import annotations

from typing import Any

from zerorun.metrics.files import is_figure

MOST = 4000  # points of a column
# Milliseconds of a step and of its parts.
TIMES = (
    "step_ms",
    "forward_ms",
    "backward_ms",
    "fwd_bwd_ms",
    "reduce_ms",
    "gather_ms",
    "comm_ms",
    "optimizer_ms",
    "other_ms",
    "reduce_hidden_ms",
    "gather_hidden_ms",
    "offload_ms",
    "offload_hidden_ms",
    "data_ms",
    "checkpoint_ms",
)
# Figures that are shown over the steps.
NAMES = (
    "loss",
    "lr",
    "grad_norm",
    "clipped_grad_norm",
    "loss_scale",
    "tokens_per_s",
    "samples_per_s",
    "mfu",
    *TIMES,
    "call_ms",
    "model_state_bytes",
    "rss_bytes",
    "gpu_bytes",
)


_AS_IT_WAS = "loss_scale"  # of the last step: no other one had a mean of them


class _Point:
    """The mean of the figures of some consecutive steps."""

    def __init__(self, step: int) -> None:
        self.step = step  # the last of them
        self.sums: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def add(self, line: dict[str, Any]) -> None:
        for name in NAMES:
            value = line.get(name)
            if is_figure(value):
                self.sums[name] = self.sums.get(name, 0.0) + value
                self.counts[name] = self.counts.get(name, 0) + 1
        self._keep_last(line.get(_AS_IT_WAS))

    def merge(self, later: _Point) -> None:
        self.step = later.step
        for name, value in later.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + later.counts[name]
        self._keep_last(later.sums.get(_AS_IT_WAS))

    def _keep_last(self, value: object) -> None:
        if is_figure(value):
            self.sums[_AS_IT_WAS], self.counts[_AS_IT_WAS] = value, 1

    def mean(self, name: str) -> float | None:
        return self.sums[name] / self.counts[name] if name in self.sums else None


class Columns:
    """Figures of the steps of one rank. Points are means of as many steps as are needed to stay
    below twice MOST."""

    def __init__(self) -> None:
        self.skipped: list[int] = []  # the first ones
        self.skipped_count = 0
        self.scale_falls = 0
        self._scale: float | None = None
        self.steps = 0
        self._points: list[_Point] = []
        self._steps_per_point = 1
        self._in_last = 0

    def add(self, line: dict[str, Any]) -> None:
        step = int(line["step"])
        if self._points and step <= self._points[-1].step:
            self._go_back(step)
        self.steps += 1
        if line.get("skipped") is True:
            self.skipped_count += 1
            if len(self.skipped) < MOST:
                self.skipped.append(step)
        self._follow_scale(line.get("loss_scale"))
        if not self._points or self._in_last == self._steps_per_point:
            self._points.append(_Point(step))
            self._in_last = 0
        self._points[-1].step = step
        self._points[-1].add(line)
        self._in_last += 1
        if len(self._points) >= 2 * MOST:
            self._thin()

    def _follow_scale(self, scale: object) -> None:
        if not is_figure(scale):
            return
        if self._scale is not None and scale < self._scale:
            self.scale_falls += 1
        self._scale = scale

    def _go_back(self, step: int) -> None:
        """A run that resumed repeats steps: what it does now counts."""
        while self._points and self._points[-1].step >= step:
            self._points.pop()
        kept = [earlier for earlier in self.skipped if earlier < step]
        self.skipped_count -= len(self.skipped) - len(kept)
        self.skipped, self._scale = kept, None
        self._in_last = self._steps_per_point

    def _thin(self) -> None:
        points = self._points
        for i in range(0, len(points) - 1, 2):
            points[i].merge(points[i + 1])
        self._points = points[::2]
        self._steps_per_point *= 2
        self._in_last = self._steps_per_point

    def table(self) -> dict[str, list[Any]]:
        """By name, with ``step``; names that no step has are left out."""
        found: dict[str, list[Any]] = {"step": [point.step for point in self._points]}
        for name in NAMES:
            values = [_short(point.mean(name)) for point in self._points]
            if any(value is not None for value in values):
                found[name] = values
        return found

    def mean(self, name: str, skip: int = 0) -> float | None:
        """Over all steps, without the first `skip` points, where there are more."""
        points = self._points[skip:] if len(self._points) > 2 * skip else self._points
        count = sum(point.counts.get(name, 0) for point in points)
        return sum(point.sums.get(name, 0.0) for point in points) / count if count else None


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
