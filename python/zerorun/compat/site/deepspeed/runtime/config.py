"""DeepSpeed configurations, read by zerorun."""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import zerorun
from zerorun import config as configuration
from zerorun.model.mesh import mesh_of

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


def adapt_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` as zerorun reads it.

    Ignored with a warning, as in DeepSpeed: unknown keys at the top level (in sections they stay
    errors), and offloading what the stage does not shard.
    """
    known = configuration.schema()["properties"]
    unknown = [key for key in config if key not in known]
    if unknown:
        texts = [_with_nearest(key, known) for key in unknown]
        logger.warning("unknown configuration keys are ignored: %s", ", ".join(texts))
    adapted = {key: value for key, value in config.items() if key in known}
    zero = adapted.get("zero_optimization")
    if isinstance(zero, Mapping):
        adapted["zero_optimization"] = _without_needless_offload(zero)
    return adapted


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


def _reader(name: str) -> Callable[[Mapping[str, Any]], Any]:
    def read(param_dict: Mapping[str, Any]) -> Any:
        """A key of the top level, or its default."""
        from deepspeed.runtime import constants

        key = getattr(constants, name.upper())
        return param_dict.get(key, getattr(constants, f"{name.upper()}_DEFAULT"))

    return read


def _part_reader(section: str, key: str) -> Callable[[Mapping[str, Any]], Any]:
    def read(param_dict: Mapping[str, Any]) -> Any:
        """A key of a section, or None."""
        return (param_dict.get(section) or {}).get(key)

    return read


for _name in (
    "dataloader_drop_last",
    "disable_allgather",
    "dump_state",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "gradient_predivide_factor",
    "log_level",
    "managed_gradient_accumulation",
    "memory_breakdown",
    "prescale_gradients",
    "steps_per_print",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "wall_clock_breakdown",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
):
    globals()[f"get_{_name}"] = _reader(_name)
for _section in ("optimizer", "scheduler"):
    globals()[f"get_{_section}_name"] = _part_reader(_section, "type")
    globals()[f"get_{_section}_params"] = _part_reader(_section, "params")
