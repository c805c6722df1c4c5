"""DeepSpeed's monitors on zerorun's."""

from typing import Any

import zerorun
from zerorun.monitor import Monitor  # noqa: F401 - scripts import it from here


def _settings_of(section: Any) -> dict[str, Any]:
    """The settings of a section, given as an object or as a dictionary."""
    given = section.model_dump() if hasattr(section, "model_dump") else dict(section)
    return {key: value for key, value in given.items() if value is not None}


class _SectionMonitor:
    """A monitor of its section, whose values are its attributes. Where that is not enabled, and on
    other ranks than 0, it writes nothing."""

    def __init__(self, config: Any) -> None:
        settings = _settings_of(config)
        vars(self).update(config.model_dump() if hasattr(config, "model_dump") else settings)
        self.enabled = settings.pop("enabled", False)
        self._writes = self.enabled and zerorun.communicator.world().rank == 0
        if self._writes:
            super().__init__(**settings)

    def write_events(self, *args: Any, **kwargs: Any) -> None:
        if self._writes:
            super().write_events(*args, **kwargs)  # type: ignore[misc]


class CometMonitor(_SectionMonitor, zerorun.monitor.CometMonitor):
    """`config`: the section; so it is of the others."""


class csvMonitor(_SectionMonitor, zerorun.monitor.CsvMonitor):  # noqa: N801 - DeepSpeed's name
    """CSV files."""


class TensorBoardMonitor(_SectionMonitor, zerorun.monitor.TensorBoardMonitor):
    """TensorBoard."""


class WandbMonitor(_SectionMonitor, zerorun.monitor.WandbMonitor):
    """Weights & Biases."""


class MonitorMaster(zerorun.monitor.MonitorMaster):
    """The monitors of ``DeepSpeedConfig.monitor_config`` or ``get_monitor_config``, on rank 0."""

    def __init__(self, monitor_config: Any) -> None:
        self.monitor_config = monitor_config
        names = ("tensorboard", "wandb", "csv_monitor", "comet")
        sections = {name: _settings_of(getattr(monitor_config, name)) for name in names}
        super().__init__(sections, zerorun.communicator.world().rank)
