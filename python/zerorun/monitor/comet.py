"""CometMonitor: an experiment of Comet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zerorun.monitor.sink import Event, Monitor, package

_GIVEN = ("api_key", "project", "workspace", "experiment_key", "mode", "online")


class CometMonitor(Monitor):
    """An experiment of Comet; a scalar is reported when `samples_log_interval` samples have passed
    since it was the last time."""

    def __init__(
        self, samples_log_interval: int = 100, experiment_name: str | None = None, **settings: Any
    ) -> None:
        super().__init__(samples_log_interval=samples_log_interval, **settings)
        comet = package("comet", "comet_ml", "comet_ml>=3.41")
        self.samples_log_interval = samples_log_interval
        self.experiment = comet.start(**{key: settings.get(key) for key in _GIVEN})
        if experiment_name is not None:
            self.experiment.set_name(experiment_name)
        self._reported: dict[str, int] = {}

    def write_events(self, event_list: Iterable[Event]) -> None:
        for name, value, samples in event_list:
            before = self._reported.get(name)
            if before is None or samples - before >= self.samples_log_interval:
                self._reported[name] = samples
                self.experiment.log_metric(name, value, step=samples)

    def close(self) -> None:
        self.experiment.end()
