"""MonitorMaster: all monitors that a configuration asks for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from zerorun import _C
from zerorun.monitor.monitors import (
    CometMonitor,
    CsvMonitor,
    Event,
    Monitor,
    TensorBoardMonitor,
    WandbMonitor,
)

SECTIONS: dict[str, type[Monitor]] = {
    "tensorboard": TensorBoardMonitor,
    "csv_monitor": CsvMonitor,
    "wandb": WandbMonitor,
    "comet": CometMonitor,
}
_logger = logging.getLogger("zerorun")


class MonitorMaster:
    """The monitors of the enabled sections, on rank 0; on other ranks it has none.

    `sections`: the configuration's sections tensorboard, csv_monitor, wandb and comet; `enabled`
    is whether any is on, on every rank. ConfigError for a missing package. A monitor that fails
    later, or whose server does not answer, is left out from then on, with one warning.
    """

    def __init__(self, sections: Mapping[str, Mapping[str, Any]], rank: int = 0) -> None:
        chosen = {name: dict(sections.get(name) or {}) for name in SECTIONS}
        chosen = {name: given for name, given in chosen.items() if given.pop("enabled", False)}
        self.enabled = bool(chosen)
        self.failed: list[str] = []  # sections whose monitor was left out
        self._monitors: dict[str, Monitor] = {}
        for name, settings in chosen.items() if rank == 0 else ():
            self._start(name, settings)

    def _start(self, name: str, settings: dict[str, Any]) -> None:
        try:
            self._monitors[name] = SECTIONS[name](**settings)
        except (_C.ConfigError, OSError):
            raise  # what the user can mend before training
        except Exception as error:
            self._leave_out(name, error)

    def __getattr__(self, name: str) -> Monitor | None:
        """`tb_monitor`, `csv_monitor`, `wandb_monitor`, `comet_monitor`: None unless it is on."""
        section = {"tb_monitor": "tensorboard", "csv_monitor": "csv_monitor"}.get(name)
        section = section or name.removesuffix("_monitor")
        if name.startswith("_") or section not in SECTIONS or not name.endswith("_monitor"):
            raise AttributeError(f"MonitorMaster has no attribute {name!r}")
        return self._monitors.get(section)

    def write_events(self, event_list: Iterable[Event]) -> None:
        """Gives each monitor the (name, value, samples so far) of the list."""
        events = list(event_list)
        for name, monitor in list(self._monitors.items()):
            try:
                monitor.write_events(events)
            except Exception as error:
                del self._monitors[name]
                self._leave_out(name, error)

    def close(self) -> None:
        for name, monitor in list(self._monitors.items()):
            try:
                monitor.close()
            except Exception as error:
                self._leave_out(name, error)
        self._monitors.clear()

    def _leave_out(self, name: str, error: Exception) -> None:
        self.failed.append(name)
        _logger.warning(
            "the monitor %s failed and gets no more; all else goes on: %s: %s",
            name,
            type(error).__name__,
            error,
        )
