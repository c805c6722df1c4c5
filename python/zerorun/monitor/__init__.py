"""Monitors: the scalars of a training in TensorBoard, CSV files, Weights & Biases and Comet."""

import csv
import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zerorun import _C
from zerorun.metrics.files import is_figure
from zerorun.program_warning import logger

__all__ = [
    "CometMonitor",
    "CsvMonitor",
    "Event",
    "Monitor",
    "MonitorMaster",
    "TensorBoardMonitor",
    "WandbMonitor",
    "step_events",
]

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


SECTIONS: dict[str, type[Monitor]] = {
    "tensorboard": TensorBoardMonitor,
    "csv_monitor": CsvMonitor,
    "wandb": WandbMonitor,
    "comet": CometMonitor,
}


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
        logger.warning(
            "the monitor %s failed and gets no more; all else goes on: %s: %s",
            name,
            type(error).__name__,
            error,
        )


# The scalars of a step, under DeepSpeed's names.
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
