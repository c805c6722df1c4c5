"""Sections of a configuration as objects with an attribute for each key."""

import copy
import functools
import json
import types
from collections.abc import Container, Iterator, Mapping
from typing import Any

from zerorun import config as configuration

from deepspeed.runtime._program_models import program_model
from deepspeed.runtime.config import DeepSpeedConfigError
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum

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
_ENUMERATIONS = {
    "/zero_optimization/stage": ZeroStageEnum,
    "/zero_optimization/offload_optimizer/device": OffloadDeviceEnum,
    "/zero_optimization/offload_param/device": OffloadDeviceEnum,
}
_PREFIX = "stage3_"  # keys of ZeRO have a name with it and one without


@functools.cache
def _schema() -> dict[str, Any]:
    return configuration.schema()


@functools.cache
def _keys_of(kind: type) -> dict[str, dict[str, Any]]:
    """The keys of a section's class as the schema describes them, or of a program's own class."""
    if kind.pointer:
        properties = _schema()
        for name in _path(kind):
            properties = properties["properties"][name]
        return properties.get("properties", {})
    bases = [each for each in reversed(kind.__mro__) if issubclass(each, DeepSpeedConfigModel)]
    found: dict[str, dict[str, Any]] = {}
    for base in bases[1:]:
        for name in vars(base).get("__annotations__", {}):
            found[name] = {"default": vars(base)[name]} if name in vars(base) else {}
    return found


def _path(kind: type) -> list[str]:
    return kind.pointer.strip("/").split("/")


class _Fields:
    """`model_fields` of pydantic's classes: each key with its `default` and `description`."""

    def __get__(self, _model: Any, kind: type) -> dict[str, types.SimpleNamespace]:
        return {
            name: types.SimpleNamespace(
                default=key.get("default"), description=key.get("description", "")
            )
            for name, key in _keys_of(kind).items()
        }


class _Model(type):
    """Makes classes of programs from pydantic's models, where it is installed."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], members: dict[str, Any], **options: Any
    ) -> Any:
        is_section = "pointer" in members or any(getattr(base, "pointer", "") for base in bases)
        model = None if is_section or not bases else program_model()
        if model is None:
            return super().__new__(cls, name, bases, members, **options)
        bases = tuple(model if isinstance(base, _Model) else base for base in bases)
        return type(model)(name, bases, members, **options)

    def __subclasscheck__(cls, kind: type) -> bool:
        if super().__subclasscheck__(kind):
            return True
        whole = cls is DeepSpeedConfigModel and program_model() is not None
        return whole and issubclass(kind, program_model())

    def __instancecheck__(cls, value: object) -> bool:
        return issubclass(type(value), cls)


class DeepSpeedConfigModel(metaclass=_Model):
    """One section, checked when it is made. Keys that are not given have their defaults.

    The methods are those of pydantic's models, which sections are not: nothing is converted but for
    DeepSpeed's enumerations. Classes that programs derive are, where pydantic is installed; of
    others names and missing values are checked.
    """

    pointer = ""
    model_fields = _Fields()

    def __init__(self, strict: bool = False, **data: Any) -> None:
        given = {key: value for key, value in data.items() if value is not None and value != "auto"}
        if self.pointer:
            self._check(given)
        else:
            self._fill(given)
        vars(self)["model_fields_set"] = set(given)
        for key, value in given.items():
            vars(self)[key] = self._part(key, value)

    def _check(self, given: Mapping[str, Any]) -> None:
        """Raises DeepSpeedConfigError for what a configuration may not say there."""
        plain: dict[str, Any] = {
            key: value.model_dump(exclude_unset=True)
            if isinstance(value, DeepSpeedConfigModel)
            else getattr(value, "value", value)
            for key, value in given.items()
        }
        path = _path(type(self))
        if len(path) > 1:  # a section of ZeRO, whose stage the one around it checks
            plain = {"stage": 3, path[1]: plain}
        try:
            configuration.parse({path[0]: plain})
        except configuration.ConfigError as error:
            raise DeepSpeedConfigError(f"{type(self).__name__}: {error}") from None

    def _fill(self, given: Mapping[str, Any]) -> None:
        """Defaults of a program's class, each model's own."""
        keys = _keys_of(type(self))
        unknown = [name for name in given if name not in keys]
        missing = [name for name, key in keys.items() if not key and name not in given]
        if unknown or missing:
            raise DeepSpeedConfigError(
                f"{type(self).__name__}: unknown {unknown}, missing {missing}; it has {list(keys)}"
            )
        for name in keys.keys() - given.keys():
            value = keys[name]["default"]
            of_field = getattr(value, "get_default", None)  # pydantic's Field(...)
            made = of_field(call_default_factory=True) if of_field else copy.deepcopy(value)
            vars(self)[name] = made

    def _part(self, key: str, value: Any) -> Any:
        """A section within this one as an object, a value of an enumeration as one."""
        kind = next((k for k in _kinds() if k.pointer == f"{self.pointer}/{key}"), None)
        if kind is not None and isinstance(value, Mapping):
            return kind(**value)
        enumeration = _ENUMERATIONS.get(f"{self.pointer}/{key}")
        return value if enumeration is None else enumeration(value)

    def __getattr__(self, name: str) -> Any:
        values, keys = vars(self), _keys_of(type(self))
        for other in (f"{_PREFIX}{name}", name.removeprefix(_PREFIX)):
            if other in values:
                return values[other]
        if name not in keys:
            raise AttributeError(f"{type(self).__name__} has no key '{name}'")
        default = keys[name].get("default")
        return default if default is None else self._part(name, default)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _keys_of(type(self)):
            raise ValueError(f"{type(self).__name__} has no key '{name}'")
        vars(self)[name] = value
        self.model_fields_set.add(name)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in _keys_of(type(self)))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.model_dump() == other.model_dump()

    __hash__ = None

    def __repr__(self) -> str:
        given = ", ".join(f"{key}={vars(self)[key]!r}" for key in sorted(self.model_fields_set))
        return f"{type(self).__name__}({given})"

    def model_dump(
        self,
        *,
        include: Container[str] | None = None,
        exclude: Container[str] = (),
        exclude_unset: bool = False,
        exclude_defaults: bool = False,
        exclude_none: bool = False,
        **_options: Any,
    ) -> dict[str, Any]:
        """All keys with their values, but for what is left out."""
        keys = _keys_of(type(self))
        options = {"exclude_unset": exclude_unset, "exclude_none": exclude_none}
        options["exclude_defaults"] = exclude_defaults
        found: dict[str, Any] = {}
        for name in keys:
            value = getattr(self, name)
            unset = exclude_unset and name not in self.model_fields_set
            usual = exclude_defaults and value == keys[name].get("default")
            left_out = unset or usual or (exclude_none and value is None)
            if left_out or name in (exclude or ()) or (include and name not in include):
                continue
            nested = isinstance(value, DeepSpeedConfigModel)
            found[name] = value.model_dump(**options) if nested else value
        return found

    dict = model_dump

    def model_dump_json(self, **options: Any) -> str:
        return json.dumps(self.model_dump(**options), default=str)

    json = model_dump_json

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Any:
        """Not checked again, as with pydantic."""
        made = copy.deepcopy(self) if deep else copy.copy(self)
        vars(made)["model_fields_set"] = self.model_fields_set | set(update or ())
        vars(made).update(update or {})
        return made

    copy = model_copy

    @classmethod
    def model_construct(cls, **values: Any) -> Any:
        """Not checked."""
        made = object.__new__(cls)
        vars(made).update(values, model_fields_set=set(values))
        return made

    @classmethod
    def model_validate(cls, obj: Any) -> Any:
        return obj if isinstance(obj, cls) else cls(**obj)

    parse_obj = model_validate

    @classmethod
    def model_validate_json(cls, json_data: str | bytes) -> Any:
        return cls(**json.loads(json_data))

    parse_raw = model_validate_json

    @classmethod
    def model_json_schema(cls) -> Mapping[str, Any]:
        return {"title": cls.__name__, "type": "object", "properties": _keys_of(cls)}


def _overlap_comm(section: Any) -> bool:
    given = vars(section).get("overlap_comm")
    return section.stage == 3 if given is None else given


def _gathers_for_saves(section: Any) -> bool:
    names = (f"{_PREFIX}gather_{bits}_weights_on_model_save" for bits in ("16bit", "fp16"))
    given = vars(section)
    return bool(
        any(given.get(name) for name in names) or given.get("gather_16bit_weights_on_model_save")
    )


def _offload(kind: str, older: str) -> property:
    """A section that an older key, a flag, stands for as well."""

    def get(section: Any) -> Any:
        given = vars(section).get(f"offload_{kind}")
        if given is not None or not vars(section).get(older):
            return given
        name = f"DeepSpeedZeroOffload{kind.capitalize()}Config"
        made = section_class(f"runtime.zero.offload_config.{name}")
        return None if made is None else made(device="cpu")

    return property(get)


# Values that follow from other keys where they are not given.
_DEPENDENT = {
    "DeepSpeedZeroConfig": {
        "overlap_comm": property(_overlap_comm),
        "offload_param": _offload("param", "cpu_offload_param"),
        "offload_optimizer": _offload("optimizer", "cpu_offload"),
        "gather_16bit_weights_on_model_save": property(_gathers_for_saves),
    },
    "DeepSpeedZeroOffloadOptimizerConfig": {
        "pipeline": property(lambda section: section.pipeline_read or section.pipeline_write)
    },
}


@functools.cache
def section_class(name: str) -> type[DeepSpeedConfigModel] | None:
    """The class of that full name without the package's, None where it has no section."""
    if name not in SECTIONS:
        return None
    module, _, last = name.rpartition(".")
    members = {"pointer": SECTIONS[name], "__module__": f"deepspeed.{module}"}
    return type(last, (DeepSpeedConfigModel,), members | _DEPENDENT.get(last, {}))


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
