"""DeepSpeed configurations, read by zerorun."""

import base64
import json
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
    stage, kept = zero.get("stage", 0), dict(zero)
    for name, least in (("offload_optimizer", 1), ("offload_param", 3)):
        given = kept.get(name)
        if isinstance(given, Mapping) and given.get("device", "none") != "none" and stage < least:
            logger.warning("%s has no effect at stage %s", name, stage)
            kept[name] = {**given, "device": "none"}
    return kept


class DeepSpeedConfig:
    """The typed values that scripts read, from a file, a dictionary or base64 text."""

    def __init__(self, config: Any, mpu: Any = None, mesh_device: Any = None) -> None:
        if isinstance(config, Mapping):
            self._param_dict = dict(config)
        elif os.path.exists(config):
            with open(config, encoding="utf-8") as file:
                self._param_dict = json.load(file)
        else:
            self._param_dict = json.loads(base64.urlsafe_b64decode(config))
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
