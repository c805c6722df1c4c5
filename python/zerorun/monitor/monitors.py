"""The places where a training's scalars go."""

from __future__ import annotations

import csv
import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zerorun import _C

Event = tuple[str, Any, int]  # name, value, and the samples that training has seen


class Monitor(ABC):
    """A place where scalars go: made of its section of the configuration, on rank 0."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    @abstractmethod
    def write_events(self, event_list: Iterable[Event]) -> None: ...

    def close(self) -> None:  # noqa: B027 - most have nothing left
        """Writes what is left."""


def package(section: str, name: str, install: str | None = None) -> Any:
    """The module that a section needs. ConfigError that says what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _C.ConfigError(
            f"/{section}/enabled needs the Python package {name.partition('.')[0]}, which cannot "
            f"be imported ({error}): pip install '{install or name.partition('.')[0]}', or set "
            f"/{section}/enabled to false"
        ) from error


class TensorBoardMonitor(Monitor):
    """Event files in `output_path`/`job_name`, by the writer of PyTorch and the package
    tensorboard."""

    def __init__(self, output_path: str = "", job_name: str = "DeepSpeedJobName", **_: Any) -> None:
        super().__init__(output_path=output_path, job_name=job_name)
        package("tensorboard", "tensorboard")
        writer = package("tensorboard", "torch.utils.tensorboard").SummaryWriter
        self.summary_writer = writer(log_dir=str(Path(output_path) / job_name))

    def write_events(self, event_list: Iterable[Event], flush: bool = True) -> None:
        for name, value, samples in event_list:
            self.summary_writer.add_scalar(name, value, samples)
        if flush:
            self.summary_writer.flush()

    def flush(self) -> None:
        self.summary_writer.flush()

    def close(self) -> None:
        self.summary_writer.close()


class CsvMonitor(Monitor):
    """``Train_Samples_lr.csv`` for the scalar ``Train/Samples/lr``, in `output_path`/`job_name`;
    its first line is ``step,lr``. A file that is there is continued."""

    def __init__(self, output_path: str = "", job_name: str = "DeepSpeedJobName", **_: Any) -> None:
        super().__init__(output_path=output_path, job_name=job_name)
        self.folder = Path(output_path) / job_name
        self.folder.mkdir(parents=True, exist_ok=True)

    def write_events(self, event_list: Iterable[Event]) -> None:
        for name, value, samples in event_list:
            path = self.folder / f"{name.replace('/', '_').replace(' ', '_')}.csv"
            is_new = not path.exists()
            with path.open("a", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                if is_new:
                    writer.writerow(["step", name.rpartition("/")[2]])
                writer.writerow([samples, value])


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


class CometMonitor(Monitor):
    """An experiment of Comet; a scalar is reported when `samples_log_interval` samples have passed
    since it was the last time."""

    _given = ("api_key", "project", "workspace", "experiment_key", "mode", "online")

    def __init__(
        self, samples_log_interval: int = 100, experiment_name: str | None = None, **settings: Any
    ) -> None:
        super().__init__(samples_log_interval=samples_log_interval, **settings)
        comet = package("comet", "comet_ml", "comet_ml>=3.41")
        self.samples_log_interval = samples_log_interval
        self.experiment = comet.start(**{key: settings.get(key) for key in self._given})
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
