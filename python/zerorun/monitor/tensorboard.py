"""TensorBoardMonitor: event files for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zerorun.monitor.sink import Event, Monitor, package


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
