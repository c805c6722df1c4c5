"""Sections of a configuration as objects with an attribute for each key."""

import functools
import json
from collections.abc import Mapping
from typing import Any

from zerorun import config as configuration

from deepspeed.runtime.config import DeepSpeedConfigError

# The classes of sections, by the module that has them.
SECTIONS = {
    "comm.config.CommsLoggerConfig": "/comms_logger",
    "monitor.config.CSVConfig": "/csv_monitor",
    "monitor.config.CometConfig": "/comet",
    "monitor.config.TensorBoardConfig": "/tensorboard",
    "monitor.config.WandbConfig": "/wandb",
    "profiling.config.DeepSpeedFlopsProfilerConfig": "/flops_profiler",
    "runtime.activation_checkpointing.config.DeepSpeedActivationCheckpointingConfig": (
        "/activation_checkpointing"
    ),
    "runtime.precision_config.DeepSpeedBF16Config": "/bf16",
    "runtime.precision_config.DeepSpeedFP16Config": "/fp16",
    "runtime.zero.config.DeepSpeedZeroConfig": "/zero_optimization",
    "runtime.zero.leaf_module_config.DeepSpeedZeroLeafModuleConfig": (
        "/zero_optimization/leaf_module"
    ),
    "runtime.zero.offload_config.DeepSpeedZeroOffloadOptimizerConfig": (
        "/zero_optimization/offload_optimizer"
    ),
    "runtime.zero.offload_config.DeepSpeedZeroOffloadParamConfig": (
        "/zero_optimization/offload_param"
    ),
}
_PREFIX = "stage3_"  # keys of ZeRO have a name with it and one without


@functools.cache
def _schema() -> dict[str, Any]:
    return configuration.schema()


class DeepSpeedConfigModel:
    """One section, checked when it is made. Keys that are not given have their defaults.

    The methods are those of pydantic's models, which these are not: nothing is converted.
    """

    pointer = ""
    _keys: dict[str, Any]

    def __init__(self, strict: bool = False, **data: Any) -> None:
        properties = _schema()
        for name in self._path():
            properties = properties["properties"][name]
        vars(self)["_keys"] = properties.get("properties", {})
        given = {key: value for key, value in data.items() if value is not None and value != "auto"}
        plain = {
            key: value.model_dump(exclude_unset=True)
            if isinstance(value, DeepSpeedConfigModel)
            else getattr(value, "value", value)
            for key, value in given.items()
        }
        if len(self._path()) > 1:  # a section of ZeRO, whose stage the one around it checks
            plain = {"stage": 3, self._path()[1]: plain}
        plain = {self._path()[0]: plain} if self._path() else plain
        try:
            configuration.parse(plain)
        except configuration.ConfigError as error:
            raise DeepSpeedConfigError(f"{type(self).__name__}: {error}") from None
        vars(self)["model_fields_set"] = set(given)
        for key, value in given.items():
            vars(self)[key] = self._part(key, value)

    @classmethod
    def _path(cls) -> list[str]:
        return cls.pointer.strip("/").split("/") if cls.pointer else []

    def _part(self, key: str, value: Any) -> Any:
        """A section within this one as an object."""
        kind = next((k for k in _kinds() if k.pointer == f"{self.pointer}/{key}"), None)
        return kind(**value) if kind is not None and isinstance(value, Mapping) else value

    def __getattr__(self, name: str) -> Any:
        values, keys = vars(self), vars(self).get("_keys", {})
        for other in (f"{_PREFIX}{name}", name.removeprefix(_PREFIX)):
            if other in values:
                return values[other]
        if name not in keys:
            raise AttributeError(f"{type(self).__name__} has no key '{name}'")
        return keys[name].get("default")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._keys:
            raise ValueError(f"{type(self).__name__} has no key '{name}'")
        vars(self)[name] = value
        self.model_fields_set.add(name)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.model_dump() == other.model_dump()

    __hash__ = None

    def __repr__(self) -> str:
        given = ", ".join(f"{key}={vars(self)[key]!r}" for key in sorted(self.model_fields_set))
        return f"{type(self).__name__}({given})"

    def model_dump(self, exclude_unset: bool = False, **_options: Any) -> dict[str, Any]:
        """All keys with their values, or those that were given."""
        keys = sorted(self.model_fields_set) if exclude_unset else list(self._keys)
        found = {key: getattr(self, key) for key in keys}
        return {
            key: value.model_dump(exclude_unset)
            if isinstance(value, DeepSpeedConfigModel)
            else value
            for key, value in found.items()
        }

    dict = model_dump

    def model_dump_json(self, **options: Any) -> str:
        return json.dumps(self.model_dump(**options), default=str)

    json = model_dump_json

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Any:
        return type(self)(**{**self.model_dump(exclude_unset=True), **(update or {})})

    @classmethod
    def model_validate(cls, obj: Any) -> Any:
        return obj if isinstance(obj, cls) else cls(**obj)


@functools.cache
def section_class(name: str) -> type[DeepSpeedConfigModel] | None:
    """The class of that full name without the package's, None where it has no section."""
    if name not in SECTIONS:
        return None
    module, _, last = name.rpartition(".")
    members = {"pointer": SECTIONS[name], "__module__": f"deepspeed.{module}"}
    return type(last, (DeepSpeedConfigModel,), members)


def _kinds() -> list[type[DeepSpeedConfigModel]]:
    return [kind for kind in map(section_class, SECTIONS) if kind is not None]


def get_scalar_param(param_dict: Mapping[str, Any], param_name: str, default: Any) -> Any:
    return param_dict.get(param_name, default)


get_list_param = get_dict_param = get_scalar_param


def get_config_default(config: type[DeepSpeedConfigModel], field_name: str) -> Any:
    return getattr(config(), field_name)


def dict_raise_error_on_duplicate_keys(ordered_pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """For json.load(object_pairs_hook=...). ValueError for keys that are there twice."""
    found: dict[Any, Any] = {}
    for key, value in ordered_pairs:
        if key in found:
            raise ValueError(f"Duplicate keys in DeepSpeed config: {key!r}")
        found[key] = value
    return found
