"""EngineTimes: what an engine's streams did in a step."""

from __future__ import annotations

import math
from typing import Any

from zerorun import _C

_MS = 1e3


class EngineTimes:
    """Times and collectives of an engine since the last look. What ran beside the program is known
    from :meth:`watch` on."""

    def __init__(self, figures: _C.EngineFigures) -> None:
        self.figures = figures
        self._watches = False
        self._counted = figures.collectives()  # up to the last look

    def watch(self) -> None:
        """Observes the engine's streams from here on."""
        if not self._watches:
            self._watches = True
            self.figures.measure_work()

    def forget(self) -> None:
        """Times until now belong to no step."""
        self.figures.take_timings()
        self.figures.take_work()
        self._counted = self.figures.collectives()

    def take(self) -> dict[str, Any]:
        reduce_s, gather_s, optimizer_s = self.figures.take_timings()
        found: dict[str, Any] = {
            "comm_ms": _MS * (reduce_s + gather_s),
            "reduce_ms": _MS * reduce_s,
            "gather_ms": _MS * gather_s,
            "optimizer_ms": _MS * optimizer_s,
            "collectives": self._take_collectives(),
        }
        found |= self.figures.stragglers()
        for name, (exposed_s, hidden_s) in self.figures.take_work().items():
            found[f"{name}_hidden_ms"] = _MS * hidden_s
            if name == "offload":
                found["offload_ms"] = _MS * exposed_s
        return found

    def _take_collectives(self) -> dict[str, list[float | None]]:
        before, self._counted = self._counted, self.figures.collectives()
        counts: dict[str, list[float | None]] = {}
        for name, (calls, nbytes, seconds) in self._counted.items():
            earlier_calls, earlier_nbytes, earlier_s = before.get(name, (0, 0, 0.0))
            if calls > earlier_calls:
                took = _MS * (seconds - earlier_s)
                ms = None if math.isnan(took) or not self._watches else took
                counts[name] = [calls - earlier_calls, nbytes - earlier_nbytes, ms]
        return counts
