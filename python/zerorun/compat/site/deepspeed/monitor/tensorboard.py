"""TensorBoardMonitor from its section of the configuration."""

import zerorun.monitor

from deepspeed.monitor.monitor import SectionMonitor


class TensorBoardMonitor(SectionMonitor, zerorun.monitor.TensorBoardMonitor):
    """`config`: the section."""
