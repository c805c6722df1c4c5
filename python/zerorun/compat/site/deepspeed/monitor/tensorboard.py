"""TensorBoardMonitor from its section of the configuration."""

from typing import Any

from zerorun.monitor import TensorBoardMonitor

from deepspeed.monitor.monitor import settings_of


class TensorBoardMonitor(TensorBoardMonitor):
    """`config`: the section, of which `enabled` is not looked at."""

    def __init__(self, config: Any) -> None:
        settings = settings_of(config)
        self.enabled = settings.pop("enabled", False)
        super().__init__(**settings)
