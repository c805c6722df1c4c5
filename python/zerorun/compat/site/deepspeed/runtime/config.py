"""DeepSpeed configurations, read by zerorun."""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import zerorun
from zerorun import config as configuration
from zerorun.model.mesh_arguments import mesh_of

from deepspeed._sections import SECTIONS, UNCHECKED
from deepspeed.runtime import _fp16_keys
from deepspeed.runtime._config_errors import DeepSpeedConfigError, deepspeeds_errors
from deepspeed.utils.logging import logger


def adapt_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` as zerorun reads it.

    Ignored with a warning, as in DeepSpeed: unknown keys at the top level and in the sections that
    it does not check (in others they stay errors), and offloading what the stage does not shard.
    DeepSpeedConfigError for null where DeepSpeed takes none.
    """
    known = configuration.schema()["properties"]
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
        adapted["fp16"] = _fp16_keys.as_read(fp16)
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
    return found, [_with_nearest(key, known) for key in section if key not in known]


def _with_nearest(key: str, known: Iterable[str]) -> str:
    near = zerorun._C.nearest_parameter(key, list(known))
    return f"{key} (did you mean {near}?)" if near else key


def _without_needless_offload(zero: Mapping[str, Any]) -> dict[str, Any]:
    kept = dict(zero)
    stage = zero.get("stage") if isinstance(zero.get("stage"), int | float) else 0  # "auto", null
    for name, least in (("offload_optimizer", 1), ("offload_param", 3)):
        given = kept.get(name)
        if isinstance(given, Mapping) and given.get("device", "none") != "none" and stage < least:
            logger.warning("%s has no effect at stage %s", name, stage)
            kept[name] = {**given, "device": "none"}
    return kept


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
        from deepspeed.runtime.config_utils import section_class

        if name == "monitor_config":
            from deepspeed.monitor.config import get_monitor_config

            return get_monitor_config(self._param_dict)
        if name in _SECTION_ATTRIBUTES:
            key, kind = _SECTION_ATTRIBUTES[name]
            return section_class(kind)(**(self._param_dict.get(key) or {}))
        for section in ("optimizer", "scheduler"):
            if name == f"{section}_params":
                return (self._param_dict.get(section) or {}).get("params")
        known = configuration.schema()["properties"]
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
        "activation_checkpointing",
        "runtime.activation_checkpointing.config.DeepSpeedActivationCheckpointingConfig",
    ),
    "bfloat16_config": ("bf16", "runtime.precision_config.DeepSpeedBF16Config"),
    "flops_profiler_config": (
        "flops_profiler",
        "profiling.config.DeepSpeedFlopsProfilerConfig",
    ),
    "float16_config": ("fp16", "runtime.precision_config.DeepSpeedFP16Config"),
    "zero_config": ("zero_optimization", "runtime.zero.config.DeepSpeedZeroConfig"),
}
