"""Monitors: the scalars of a training in TensorBoard, CSV files, Weights & Biases and Comet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerorun.lazy_names import lazy_names

if TYPE_CHECKING:
    from zerorun.monitor.comet import CometMonitor
    from zerorun.monitor.csv_files import CsvMonitor
    from zerorun.monitor.events import step_events
    from zerorun.monitor.master import MonitorMaster
    from zerorun.monitor.sink import Event, Monitor
    from zerorun.monitor.tensorboard import TensorBoardMonitor
    from zerorun.monitor.weights_and_biases import WandbMonitor

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

__getattr__ = lazy_names(
    __name__,
    {
        "CometMonitor": "zerorun.monitor.comet",
        "CsvMonitor": "zerorun.monitor.csv_files",
        "Event": "zerorun.monitor.sink",
        "Monitor": "zerorun.monitor.sink",
        "MonitorMaster": "zerorun.monitor.master",
        "TensorBoardMonitor": "zerorun.monitor.tensorboard",
        "WandbMonitor": "zerorun.monitor.weights_and_biases",
        "step_events": "zerorun.monitor.events",
    },
)
