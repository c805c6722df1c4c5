"""Monitors: the scalars of a training in TensorBoard, CSV files, Weights & Biases and Comet."""

from zerorun.monitor.events import step_events
from zerorun.monitor.master import MonitorMaster
from zerorun.monitor.monitors import (
    CometMonitor,
    CsvMonitor,
    Event,
    Monitor,
    TensorBoardMonitor,
    WandbMonitor,
)

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
