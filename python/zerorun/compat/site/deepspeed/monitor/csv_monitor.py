"""csvMonitor from its section of the configuration."""

import zerorun.monitor

from deepspeed.monitor.monitor import SectionMonitor


class csvMonitor(SectionMonitor, zerorun.monitor.CsvMonitor):  # noqa: N801 - DeepSpeed's name
    """`config`: the section."""
