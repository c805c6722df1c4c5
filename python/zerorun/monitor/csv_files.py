"""CsvMonitor: a file for each scalar, with a line for each event."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zerorun.monitor.sink import Event, Monitor


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
