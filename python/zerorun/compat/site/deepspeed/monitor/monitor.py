"""DeepSpeed's monitors on zerorun's."""

from typing import Any

import zerorun
from zerorun.monitor import Monitor

__all__ = ["Monitor", "MonitorMaster"]


def settings_of(section: Any) -> dict[str, Any]:
    """What a section sets, given as an object or as a dictionary."""
    given = section.model_dump() if hasattr(section, "model_dump") else dict(section)
    return {key: value for key, value in given.items() if value is not None}


class MonitorMaster(zerorun.monitor.MonitorMaster):
    """The monitors of ``DeepSpeedConfig.monitor_config`` or ``get_monitor_config``, on rank 0."""

    def __init__(self, monitor_config: Any) -> None:
        self.monitor_config = monitor_config
        names = ("tensorboard", "wandb", "csv_monitor", "comet")
        sections = {name: settings_of(getattr(monitor_config, name)) for name in names}
        super().__init__(sections, zerorun.communicator.world().rank)
