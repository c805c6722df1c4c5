"""WandbMonitor: a run of Weights & Biases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zerorun.monitor.sink import Event, Monitor, package


class WandbMonitor(Monitor):
    """A run of Weights & Biases, or the one that the program has begun already."""

    def __init__(
        self,
        group: str | None = None,
        team: str | None = None,
        project: str | None = "deepspeed",
        **_: Any,
    ) -> None:
        super().__init__(group=group, team=team, project=project)
        self._wandb = package("wandb", "wandb")
        if self._wandb.run is None:
            self._wandb.init(project=project, group=group, entity=team)

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> Any:
        return self._wandb.log(data, step=step, commit=commit)

    def write_events(self, event_list: Iterable[Event]) -> None:
        together: dict[int, dict[str, Any]] = {}
        for name, value, samples in event_list:
            together.setdefault(samples, {})[name] = value
        for samples, values in together.items():
            self.log(values, step=samples)

    def close(self) -> None:
        self._wandb.finish()
