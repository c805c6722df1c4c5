"""The sections of monitors as one object; their classes are made of the table of keys."""

from typing import Any

from deepspeed.runtime.config_utils import section_class

_SECTIONS = {
    "tensorboard": "monitor.config.TensorBoardConfig",
    "comet": "monitor.config.CometConfig",
    "wandb": "monitor.config.WandbConfig",
    "csv_monitor": "monitor.config.CSVConfig",
}


class DeepSpeedMonitorConfig:
    """Sections ``tensorboard``, ``comet``, ``wandb`` and ``csv_monitor``, checked."""

    def __init__(self, **sections: Any) -> None:
        for name, kind in _SECTIONS.items():
            given = sections.get(name) or {}
            is_model = hasattr(given, "model_dump")
            vars(self)[name] = given if is_model else section_class(kind)(**given)

    @property
    def enabled(self) -> bool:
        return any(vars(self)[name].enabled for name in _SECTIONS)


def get_monitor_config(param_dict: dict[str, Any]) -> DeepSpeedMonitorConfig:
    """The section of a whole configuration."""
    return DeepSpeedMonitorConfig(**{name: param_dict.get(name) for name in _SECTIONS})
