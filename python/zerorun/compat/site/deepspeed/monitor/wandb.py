"""WandbMonitor from its section of the configuration."""

import zerorun.monitor

from deepspeed.monitor.monitor import SectionMonitor


class WandbMonitor(SectionMonitor, zerorun.monitor.WandbMonitor):
    """`config`: the section."""
