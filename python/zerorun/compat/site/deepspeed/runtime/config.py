"""DeepSpeed configurations, read by zerorun."""

import os
from collections.abc import Mapping
from typing import Any

import zerorun
from zerorun import config as configuration

from deepspeed.utils.logging import logger

DeepSpeedConfigError = zerorun.ConfigError


def adapt_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` as zerorun reads it.

    Ignored with a warning, as in DeepSpeed: unknown keys at the top level (in sections they stay
    errors), and offloading what the stage does not shard.
    """
    known = configuration.schema()["properties"]
    unknown = [key for key in config if key not in known]
    if unknown:
        logger.warning("unknown configuration keys are ignored: %s", ", ".join(unknown))
    adapted = {key: value for key, value in config.items() if key in known}
    zero = adapted.get("zero_optimization")
    if isinstance(zero, Mapping):
        adapted["zero_optimization"] = _without_needless_offload(zero)
    return adapted


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
    """The typed values that scripts read, from a file, a dictionary or base64 text."""

    def __init__(self, config: Any, mpu: Any = None, mesh_device: Any = None) -> None:
        self._param_dict = read_config(config)
        parsed = configuration.parse(adapt_config(self._param_dict)).config
        world_size = zerorun.communicator.world().world_size
        batch = configuration.resolve_batch(parsed.batch, world_size)
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
