"""The sections of monitors as one object; their classes are made of the table of keys."""

from typing import Any

import pydantic

from deepspeed.runtime.config_utils import DeepSpeedConfigModel, section_class

_KINDS = {
    "tensorboard": section_class("monitor.config.TensorBoardConfig"),
    "comet": section_class("monitor.config.CometConfig"),
    "wandb": section_class("monitor.config.WandbConfig"),
    "csv_monitor": section_class("monitor.config.CSVConfig"),
}


class _Monitors(DeepSpeedConfigModel):
    @property
    def enabled(self) -> bool:
        return any(getattr(self, name).enabled for name in _KINDS)


DeepSpeedMonitorConfig: Any = pydantic.create_model(
    "DeepSpeedMonitorConfig",
    __base__=_Monitors,
    __module__=__name__,
    **{name: (kind, pydantic.Field(default_factory=kind)) for name, kind in _KINDS.items()},
)


def get_monitor_config(param_dict: dict[str, Any]) -> Any:
    """The section of a whole configuration."""
    return DeepSpeedMonitorConfig(**{name: param_dict.get(name) or {} for name in _KINDS})
