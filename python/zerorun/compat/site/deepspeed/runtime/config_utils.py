"""Sections of a configuration as pydantic's models, made of the core's table of keys."""

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from zerorun.model.units import DEFAULT_CLASSES

from deepspeed._finder import SECTIONS, UNCHECKED
from deepspeed.runtime import config as configs
from deepspeed.utils.logging import logger

try:
    import pydantic
except ImportError as error:
    raise ImportError(
        "the classes of a configuration's sections are pydantic's models: pip install pydantic "
        "(deepspeed.initialize does not need them)"
    ) from error

_PREFIX = "stage3_"  # keys of ZeRO have a name with it and one without
_PLAIN = {"boolean": bool, "integer": int, "number": float, "string": str, "array": list[str]}
_ENUMERATIONS = {
    "/zero_optimization/stage": configs.ZeroStageEnum,
    "/zero_optimization/offload_optimizer/device": configs.OffloadDeviceEnum,
    "/zero_optimization/offload_param/device": configs.OffloadDeviceEnum,
}


class DeepSpeedConfigModel(pydantic.BaseModel):
    """Pydantic's model with DeepSpeed's rules: "auto" is the default, unknown keys are errors, and
    keys that were replaced hand their values on.

    A field says that with ``json_schema_extra``: ``deprecated``, ``deprecated_msg``, ``new_param``,
    ``new_param_fn`` and ``set_new_param``.
    """

    model_config = pydantic.ConfigDict(
        validate_default=True,
        validate_assignment=True,
        use_enum_values=True,
        populate_by_name=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )

    def __init__(self, strict: bool = False, **data: Any) -> None:
        super().__init__(**(data if strict else {k: v for k, v in data.items() if v != "auto"}))
        for name, field in type(self).model_fields.items():
            extra, is_given = field.json_schema_extra, name in self.model_fields_set
            if is_given and isinstance(extra, dict) and extra.get("deprecated"):
                self._hand_on(name, extra)

    def _hand_on(self, old: str, extra: dict[str, Any]) -> None:
        """Gives the value of a deprecated key to the key that came after it."""
        new, remark = extra.get("new_param", ""), extra.get("deprecated_msg", "")
        hint = f" use {new} instead" if new else ""
        logger.warning("Config parameter %s is deprecated%s%s", old, hint, remark and f". {remark}")
        if not new or not extra.get("set_new_param", True):
            return
        value = extra.get("new_param_fn", lambda given: given)(getattr(self, old))
        *path, name = new.split(".")
        holder = functools.reduce(getattr, path, self)
        if name in holder.model_fields_set:
            raise AssertionError(
                f"Cannot provide deprecated parameter '{old}' and replacing parameter '{new}' "
                "together"
            )
        delattr(self, old)
        setattr(holder, name, value)


def _type_of(pointer: str, key: Mapping[str, Any]) -> Any:
    """The type of a key's values, with the limits that the schema has."""
    inner = next((name for name, section in SECTIONS.items() if section == pointer), None)
    if inner is not None:
        return section_class(inner)
    if pointer in _ENUMERATIONS:
        return _ENUMERATIONS[pointer]
    # A list goes before the one name that may stand for it.
    for kind in sorted(key.get("anyOf", ()), key=lambda kind: kind.get("type") != "array"):
        if kind.get("type") in _PLAIN:
            bounds = {"ge": kind.get("minimum"), "le": kind.get("maximum")}
            if pointer.startswith("/fp16/"):  # which its own rules limit
                bounds = {}
            elif pointer == "/zero_optimization/reduce_bucket_size":
                bounds = {"gt": 0}
            return Annotated[_PLAIN[kind["type"]], pydantic.Field(**bounds)]
        if kind.get("const") is False:
            return bool
    return dict


def _default_of(kind: Any, key: Mapping[str, Any], pointer: str) -> Any:
    if pointer.endswith("/leaf_module"):
        return pydantic.Field(default_factory=kind)
    if pointer.endswith("/leaf_module/classes"):
        return list(DEFAULT_CLASSES)
    return [] if "/leaf_module/" in pointer else key.get("default")


def _fields_of(pointer: str) -> dict[str, Any]:
    """The fields of a section's model: type and default by name."""
    keys, fields = configs.described(pointer)["properties"], {}
    optional = pointer.strip("/") in UNCHECKED
    for name, key in keys.items():
        if name.startswith(_PREFIX) and name.removeprefix(_PREFIX) in keys:
            continue  # an alias
        kind = _type_of(f"{pointer}/{name}", key)
        default = _default_of(kind, key, f"{pointer}/{name}")
        options: dict[str, Any] = {"description": key.get("description")}
        if f"{_PREFIX}{name}" in keys:
            options["alias"] = f"{_PREFIX}{name}"
        if key.get("deprecated"):
            default, options["json_schema_extra"] = None, {"deprecated": True} | _REPLACED[name]
        if default is None or optional:
            kind = kind | None
        is_field = isinstance(default, pydantic.fields.FieldInfo)
        fields[name] = (kind, default if is_field else pydantic.Field(default, **options))
    return fields


def _offloaded(kind: str) -> Callable[[bool], Any]:
    name = f"runtime.zero.offload_config.DeepSpeedZeroOffload{kind}Config"
    return lambda is_given: section_class(name)(device="cpu") if is_given else None


_REPLACED: dict[str, dict[str, Any]] = {
    "cpu_offload": {"new_param": "offload_optimizer", "new_param_fn": _offloaded("Optimizer")},
    "cpu_offload_param": {"new_param": "offload_param", "new_param_fn": _offloaded("Param")},
    "cpu_offload_use_pin_memory": {
        "new_param": "offload_param or offload_optimizer",
        "set_new_param": False,
    },
    "stage3_gather_fp16_weights_on_model_save": {"new_param": "gather_16bit_weights_on_model_save"},
}


def _overlap_comm(section: Any) -> Any:
    if section.overlap_comm is None:
        section.overlap_comm = section.stage == configs.ZeroStageEnum.weights
    return section


def _pipeline(section: Any) -> Any:
    vars(section)["pipeline"] = section.pipeline_read or section.pipeline_write
    return section


def _lists(values: Any) -> Any:
    """One name stands for a list of it."""
    if not isinstance(values, Mapping):
        return {} if values is None else values
    return {key: [value] if isinstance(value, str) else value for key, value in values.items()}


def _numbers(values: Any) -> Any:
    return configs.with_numbers(values) if isinstance(values, Mapping) else values


def _dynamic(section: Any) -> Any:
    configs.check_dynamic(vars(section))
    return section


_RULES: dict[str, list[tuple[str, Callable[[Any], Any]]]] = {
    "DeepSpeedZeroConfig": [("after", _overlap_comm)],
    "DeepSpeedZeroOffloadOptimizerConfig": [("after", _pipeline)],
    "DeepSpeedZeroLeafModuleConfig": [("before", _lists)],
    "DeepSpeedFP16Config": [("before", _numbers), ("after", _dynamic)],
}


@functools.cache
def section_class(name: str) -> type[DeepSpeedConfigModel]:
    """The class of a section, by its full name without the package's. KeyError for others."""
    pointer = SECTIONS[name]
    module, _, last = name.rpartition(".")
    validators = {
        function.__name__: pydantic.model_validator(mode=mode)(function)
        for mode, function in _RULES.get(last, ())
    }
    base: type[DeepSpeedConfigModel] = DeepSpeedConfigModel
    if pointer.strip("/") in UNCHECKED:
        base = type(last, (base,), {"model_config": {"extra": "ignore"}, "__module__": module})
    return pydantic.create_model(
        last,
        __base__=base,
        __module__=f"deepspeed.{module}",
        __validators__=validators,
        **_fields_of(pointer),
    )


def _given_section(param_dict: Mapping[str, Any], name: str, *keys: str) -> Any:
    given = next((param_dict[key] for key in keys if param_dict.get(key)), {})
    return section_class(f"runtime.precision_config.{name}")(**given)


def get_bfloat16_config(param_dict: Mapping[str, Any]) -> Any:
    return _given_section(param_dict, "DeepSpeedBF16Config", "bf16", "bfloat16")


def get_float16_config(param_dict: Mapping[str, Any]) -> Any:
    return _given_section(param_dict, "DeepSpeedFP16Config", "fp16")


# The sections of monitors as one object.
_MONITORS = {
    "tensorboard": section_class("monitor.config.TensorBoardConfig"),
    "comet": section_class("monitor.config.CometConfig"),
    "wandb": section_class("monitor.config.WandbConfig"),
    "csv_monitor": section_class("monitor.config.CSVConfig"),
}


class _Monitors(DeepSpeedConfigModel):
    @property
    def enabled(self) -> bool:
        return any(getattr(self, name).enabled for name in _MONITORS)


DeepSpeedMonitorConfig: Any = pydantic.create_model(
    "DeepSpeedMonitorConfig",
    __base__=_Monitors,
    __module__=__name__,
    **{name: (kind, pydantic.Field(default_factory=kind)) for name, kind in _MONITORS.items()},
)


def get_monitor_config(param_dict: dict[str, Any]) -> Any:
    """The section of a whole configuration."""
    return DeepSpeedMonitorConfig(**{name: param_dict.get(name) or {} for name in _MONITORS})


def get_scalar_param(param_dict: Mapping[str, Any], param_name: str, default: Any) -> Any:
    return param_dict.get(param_name, default)


get_list_param = get_dict_param = get_scalar_param


def get_config_default(config: type[DeepSpeedConfigModel], field_name: str) -> Any:
    """The default of a key. AssertionError for a key that there is none of, or that is required."""
    field = config.model_fields.get(field_name)
    if field is None or field.is_required():
        raise AssertionError(f"'{field_name}' has no default in {config}")
    return field.get_default()


def dict_raise_error_on_duplicate_keys(ordered_pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """For json.load(object_pairs_hook=...). ValueError for keys that are there twice."""
    found: dict[Any, Any] = {}
    for key, value in ordered_pairs:
        if key in found:
            raise ValueError(f"Duplicate keys in DeepSpeed config: {key!r}")
        found[key] = value
    return found
