"""csvMonitor from its section of the configuration."""

from typing import Any

from zerorun.monitor import CsvMonitor

from deepspeed.monitor.monitor import settings_of


class csvMonitor(CsvMonitor):  # noqa: N801 - DeepSpeed's name
    """`config`: the section, of which `enabled` is not looked at."""

    def __init__(self, config: Any) -> None:
        settings = settings_of(config)
        self.enabled = settings.pop("enabled", False)
        super().__init__(**settings)
