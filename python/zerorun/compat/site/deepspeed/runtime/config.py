"""DeepSpeed configurations, read by zerorun."""

import contextlib
import functools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, IntEnum
from typing import Any

import torch
import zerorun
from zerorun import config as configuration
from zerorun import sequence
from zerorun.model.engine_ranks import asked, mesh_of

from deepspeed._finder import SECTIONS, UNCHECKED
from deepspeed.utils.logging import logger


class DeepSpeedConfigError(zerorun.ConfigError, AssertionError):
    """zerorun's, which scripts may also catch as DeepSpeed's and as its assertions."""


@contextlib.contextmanager
def deepspeeds_errors() -> Iterator[None]:
    """Within, zerorun's ConfigError becomes DeepSpeed's."""
    try:
        yield
    except DeepSpeedConfigError:
        raise
    except zerorun.ConfigError as error:
        raise DeepSpeedConfigError(str(error)) from error


@functools.cache
def _schema() -> dict[str, Any]:
    return configuration.schema()


def described(pointer: str) -> dict[str, Any]:
    """What the schema says of a key or a section."""
    names = pointer.strip("/").split("/")
    return functools.reduce(lambda found, name: found["properties"][name], names, _schema())


# --- as zerorun reads it ---


def adapt_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` as zerorun reads it.

    Ignored with a warning, as in DeepSpeed: unknown keys at the top level and in the sections that
    it does not check (in others they stay errors), and offloading what the stage does not shard.
    DeepSpeedConfigError for null where DeepSpeed takes none.
    """
    known = _schema()["properties"]
    adapted, unknown = _known_part(config, known)
    for section in UNCHECKED & adapted.keys():
        if isinstance(adapted[section], Mapping):
            adapted[section], others = _known_part(adapted[section], known[section]["properties"])
            unknown += [f"{section}.{text}" for text in others]
    if unknown:
        logger.warning("unknown configuration keys are ignored: %s", ", ".join(unknown))
    for section in _CHECKED & adapted.keys():
        if isinstance(adapted[section], Mapping):
            _refuse_null(section, adapted[section], known[section]["properties"])
    fp16, zero = adapted.get("fp16"), adapted.get("zero_optimization")
    if isinstance(fp16, Mapping):
        adapted["fp16"] = fp16 = with_numbers(fp16)
        check_dynamic(fp16)
        for key in () if _is_dynamic(fp16) else _OF_DYNAMIC_SCALE:
            fp16.pop(key, None)  # what has no effect there
    if isinstance(zero, Mapping):
        adapted["zero_optimization"] = _without_needless_offload(zero)
    return adapted


# Sections that DeepSpeed has models of.
_CHECKED = {pointer.strip("/") for pointer in SECTIONS.values()} - UNCHECKED


def _refuse_null(section: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for key, value in given.items():
        described = known.get(key, {})
        if value is None and "default" in described and not described.get("deprecated"):
            raise DeepSpeedConfigError(
                f"/{section}/{key}: got null, expected a value as {described['default']!r}, or "
                "leave the key out"
            )


def _known_part(
    section: Mapping[str, Any], known: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The keys that are known, and the others with the nearest of those."""
    found = {key: value for key, value in section.items() if key in known}
    others = []
    for key in (key for key in section if key not in known):
        near = zerorun._C.nearest_parameter(key, list(known))
        others.append(f"{key} (did you mean {near}?)" if near else key)
    return found, others


def _without_needless_offload(zero: Mapping[str, Any]) -> dict[str, Any]:
    kept = dict(zero)
    stage = zero.get("stage") if isinstance(zero.get("stage"), int | float) else 0  # "auto", null
    for name, least in (("offload_optimizer", 1), ("offload_param", 3)):
        given = kept.get(name)
        if isinstance(given, Mapping) and given.get("device", "none") != "none" and stage < least:
            logger.warning("%s has no effect at stage %s", name, stage)
            kept[name] = {**given, "device": "none"}
    return kept


# --- fp16: numbers may be quoted, and some count only at times ---

_NUMBERS = {
    "loss_scale": "a number",
    "initial_scale_power": "an integer",
    "loss_scale_window": "an integer",
    "hysteresis": "an integer",
    "min_loss_scale": "an integer",
}
_OF_DYNAMIC_SCALE = ("loss_scale_window", "min_loss_scale")


def with_numbers(fp16: Mapping[str, Any]) -> dict[str, Any]:
    """The section with numbers for quoted ones. DeepSpeedConfigError for what is none."""
    found = dict(fp16)
    for key in _NUMBERS.keys() & found.keys():
        if found[key] != "auto":
            found[key] = _fp16_number(key, found[key])
    return found


def _fp16_number(key: str, value: Any) -> int | float:
    kind = float if key == "loss_scale" else int
    try:
        if isinstance(value, bool) or not math.isfinite(float(value)):
            raise ValueError
        number = kind(value) if isinstance(value, str) else value
    except (TypeError, ValueError):
        raise DeepSpeedConfigError(f"/fp16/{key}: got {value!r}, must be {_NUMBERS[key]}") from None
    if key == "loss_scale" and number < 0:
        raise DeepSpeedConfigError(f"/fp16/{key}: got {value!r}, must be >= 0 (0: it changes)")
    return number


def _is_dynamic(fp16: Mapping[str, Any]) -> bool:
    """True where the loss scale changes while training."""
    return bool(fp16.get("enabled")) and fp16.get("loss_scale") in (None, 0, "auto")


def check_dynamic(fp16: Mapping[str, Any]) -> None:
    """Raises DeepSpeedConfigError for numbers with which a dynamic scale could not change."""
    for key in _OF_DYNAMIC_SCALE if _is_dynamic(fp16) else ():
        if fp16.get(key, 1) != "auto" and fp16.get(key, 1) <= 0:
            raise DeepSpeedConfigError(
                f"/fp16/{key}: got {fp16[key]}, expected more than 0 with a dynamic loss scale "
                "(loss_scale 0)"
            )


# --- the sequence parallelism that an mpu, or groups that there are, ask for ---


def sequence_settings(config: Mapping[str, Any], mpu: Any = None) -> dict[str, Any]:
    """`config` with the number of ranks that share a sequence, wherever that is from.

    Raises ConfigError for sizes that contradict each other.
    """
    given = config.get("sequence_parallel_size")
    size = given if isinstance(given, int) else None
    of_mpu = asked(mpu, "get_sequence_parallel_world_size")
    if size is not None and of_mpu is not None and size != of_mpu:
        raise zerorun.ConfigError(
            f"/sequence_parallel_size: got {size}, but the mpu has {of_mpu}: give one of them"
        )
    groups = sequence.current()
    found = of_mpu or (groups.size if groups is not None else 1)
    return {**config, "sequence_parallel_size": found} if (size or 1) == 1 < found else {**config}


# --- optimizers and schedules of torch's that a configuration names ---

_PLACES = {
    "optimizer": (torch.optim, torch.optim.Optimizer),
    "scheduler": (torch.optim.lr_scheduler, torch.optim.lr_scheduler.LRScheduler),
}


@functools.cache
def _own_names(section: str) -> set[str]:
    """The names in lower case that zerorun has its own of."""
    kinds = described(f"{section}/type")["anyOf"]
    return {name.lower() for kind in kinds for name in kind.get("enum", ())}


def take_torchs_own(settings: dict[str, Any], section: str) -> Callable[..., Any] | None:
    """A maker of what the section names, where that is a class of torch's and no name of zerorun's:
    the section leaves the settings then. None otherwise."""
    given = settings.get(section)
    name = given.get("type") if isinstance(given, dict) else None
    place, kind = _PLACES[section]
    found = getattr(place, name, None) if isinstance(name, str) else None
    if not (isinstance(found, type) and issubclass(found, kind)) or found is kind:
        return None
    if name.lower() in _own_names(section):
        return None
    del settings[section]
    params = {key: value for key, value in (given.get("params") or {}).items() if value != "auto"}
    return functools.partial(found, **params)


# --- as scripts read it ---


def read_config(config: Any) -> dict[str, Any]:
    """The dictionary of a configuration given as such, as a file or as its base64 text.

    Raises ConfigError, for a file with line and column.
    """
    if isinstance(config, Mapping):
        return dict(config)
    if not isinstance(config, str | os.PathLike):
        raise DeepSpeedConfigError(
            f"configuration: got {type(config).__name__}, expected a file, its base64 text or a "
            "dictionary"
        )
    found = configuration.read(config)
    if not isinstance(found, dict):
        configuration.load(config)  # names the place
        raise DeepSpeedConfigError(f"{config}: got {type(found).__name__}, expected an object")
    return found


class DeepSpeedConfig:
    """The typed values that scripts read, from a file, a dictionary or base64 text.

    Sections of which DeepSpeed has a class are `zero_config`, `float16_config`, `bfloat16_config`
    and `activation_checkpointing_config`; keys of the top level have their own names.
    """

    def __init__(self, config: Any, mpu: Any = None, mesh_device: Any = None) -> None:
        self._param_dict = read_config(config)
        with deepspeeds_errors():
            found = configuration.parse(adapt_config(self._param_dict))
            mesh = mesh_of(mpu, mesh_device)
            world_size = zerorun.communicator.world().world_size if mesh is None else mesh.data_size
            batch, parsed = configuration.batch_for(found, world_size), found.config
        self.world_size = world_size  # of data-parallel ranks
        self.train_batch_size = batch.train_batch_size
        self.train_micro_batch_size_per_gpu = batch.micro_batch_size
        self.gradient_accumulation_steps = batch.accumulation_steps
        self.gradient_clipping = parsed.gradient_clipping
        self.zero_optimization_stage = parsed.zero.stage
        self.zero_enabled = parsed.zero.stage > 0
        self.fp16_enabled = parsed.precision.param_dtype == "fp16"
        self.bfloat16_enabled = parsed.precision.param_dtype == "bf16"
        self.optimizer_name = parsed.optimizer.type.lower()
        self.scheduler_name = parsed.scheduler.type or None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        from deepspeed.runtime.config_utils import get_monitor_config, section_class

        if name == "monitor_config":
            return get_monitor_config(self._param_dict)
        if name in _SECTION_ATTRIBUTES:
            kind = _SECTION_ATTRIBUTES[name]
            return section_class(kind)(**(self._param_dict.get(SECTIONS[kind][1:]) or {}))
        for section in ("optimizer", "scheduler"):
            if name == f"{section}_params":
                return (self._param_dict.get(section) or {}).get("params")
        known = _schema()["properties"]
        if name in known["data_types"]["properties"]:
            return (self._param_dict.get("data_types") or {}).get(name)
        if name not in known:
            raise AttributeError(f"DeepSpeedConfig (zerorun's) has no attribute '{name}'")
        return self._param_dict.get(name, known[name].get("default"))

    def print_user_config(self) -> None:
        """Logs the configuration as it was given."""
        logger.info("  json = %s", json.dumps(self._param_dict, indent=4, sort_keys=True))

    def print(self, name: str) -> None:
        logger.info("%s:", name)
        for key, value in sorted(vars(self).items()):
            if not key.startswith("_"):
                logger.info("  %s = %s", key, value)
        self.print_user_config()


_SECTION_ATTRIBUTES = {
    "activation_checkpointing_config": (
        "runtime.activation_checkpointing.config.DeepSpeedActivationCheckpointingConfig"
    ),
    "bfloat16_config": "runtime.precision_config.DeepSpeedBF16Config",
    "flops_profiler_config": "profiling.config.DeepSpeedFlopsProfilerConfig",
    "float16_config": "runtime.precision_config.DeepSpeedFP16Config",
    "zero_config": "runtime.zero.config.DeepSpeedZeroConfig",
}

# --- enumerations of the section of ZeRO ---


class ZeroStageEnum(IntEnum):
    """Stages of ZeRO."""

    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3
    max_stage = 3


class OffloadDeviceEnum(str, Enum):
    """The devices that can store states."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OffloadStateTypeEnum(str, Enum):
    """Kinds of states."""

    optim_states = "optim_states"
    hp_params = "hp_params"
    lp_params = "lp_params"
    lp_grads = "lp_grads"
    contiguous_grad_buffer = "contiguous_grad_buffer"


def _scalar(param_dict: Mapping[str, Any], key: str) -> Any:
    return param_dict.get(key, described(key).get("default"))


get_dump_state = functools.partial(_scalar, key="dump_state")
get_gradient_accumulation_steps = functools.partial(_scalar, key="gradient_accumulation_steps")
get_gradient_clipping = functools.partial(_scalar, key="gradient_clipping")
get_log_level = functools.partial(_scalar, key="log_level")
get_steps_per_print = functools.partial(_scalar, key="steps_per_print")
get_train_batch_size = functools.partial(_scalar, key="train_batch_size")


def get_zero_config(param_dict: Mapping[str, Any]) -> Any:
    """The section of a configuration as an object; `true` and `false` are its older form."""
    from deepspeed.runtime.config_utils import section_class

    given = param_dict.get("zero_optimization") or {}
    values = {"stage": 1} if given is True else given
    return section_class("runtime.zero.config.DeepSpeedZeroConfig")(**values)
