"""DeepSpeed configurations, read by zerorun."""

import base64
import json
import os
import re
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


# JSON with comments and trailing commas, as zerorun's parser takes it. What the first group matches
# stays; a comma without a value before it does, for json to refuse.
_STRING = r'"(?:\\.|[^"\\])*"'
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|#[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"({_STRING}|[\[{{,:]\s*,)|,(?=\s*[}}\]])", re.DOTALL)


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
    try:
        text = _text_of(os.fspath(config))
        for pattern in (_COMMENT, _TRAILING_COMMA):
            text = pattern.sub(lambda match: match[1] or " ", text)
        found = json.loads(text, object_pairs_hook=_without_duplicates)
        if not isinstance(found, dict):
            raise ValueError(f"got {type(found).__name__}, expected an object")
        return found
    except (OSError, ValueError, RecursionError) as error:
        configuration.load(config)  # names the place
        raise DeepSpeedConfigError(f"{config}: {error}") from error


def _text_of(config: str) -> str:
    if not os.path.exists(config):
        padded = config + "=" * (-len(config) % 4)
        decoded = base64.b64decode(padded, altchars=b"-_", validate=True)
        return decoded.decode("utf-8-sig")
    with open(config, encoding="utf-8-sig") as file:
        return file.read()


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is there more than once")
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
