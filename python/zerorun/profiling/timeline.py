"""Timeline: what each rank computed and communicated when, for Perfetto (`zerorun.trace`)."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import Any

from zerorun import _C
from zerorun.metrics import StepMeter

_logger = logging.getLogger("zerorun")


class Timeline:
    """A listener that writes the steps from `steps[0]` to `steps[1]`, counted from 1, into a file
    on rank 0. Collective in the last of these steps, when the ranks' parts come together."""

    def __init__(self, core: _C.Engine, meter: StepMeter, file: str, steps: Sequence[int]) -> None:
        if len(steps) != 2 or steps[0] > steps[1]:
            raise _C.ConfigError(
                f"/zerorun/trace/steps: got {list(steps)}, expected the first and the last step"
            )
        self._last = steps[1]
        self._clocks = (meter.forward, meter.backward)
        self._core = _C.Timeline(core, file, *steps)
        self._keep_spans()
        self._warning = weakref.finalize(self, _warn, file, steps[1])

    def _keep_spans(self) -> None:
        for clock in self._clocks:
            clock.spans = [] if self._core.is_recording else None

    def __call__(self, metrics: dict[str, Any]) -> None:
        for clock in self._clocks:
            for span in clock.spans or []:
                self._core.add(*span)
        step = metrics["step"]
        if step >= self._last:
            self._warning.detach()
        line = self._core.end_step(step)
        self._keep_spans()
        if line:
            _logger.info("%s", line)


def _warn(file: str, last: int) -> None:
    _logger.warning(
        "the timeline %s was not written: training ended before step %d, the last of "
        "/zerorun/trace/steps",
        file,
        last,
    )
