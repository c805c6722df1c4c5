"""CometMonitor from its section of the configuration."""

import zerorun.monitor

from deepspeed.monitor.monitor import SectionMonitor


class CometMonitor(SectionMonitor, zerorun.monitor.CometMonitor):
    """`config`: the section."""
