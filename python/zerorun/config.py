"""Reading and checking a DeepSpeed configuration; docs/config.md lists every key.

All functions raise :class:`zerorun.ConfigError`, which lists every problem with its JSON pointer.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from zerorun import _C
from zerorun._C import (
    BatchConfig,
    Config,
    ConfigError,
    ConfigValue,
    LossScalerOptions,
    OptimizerConfig,
    ParsedConfig,
    PrecisionConfig,
    SchedulerConfig,
    ZeroConfig,
)

__all__ = [
    "BatchConfig",
    "Config",
    "ConfigValue",
    "LossScalerOptions",
    "OptimizerConfig",
    "ParsedConfig",
    "PrecisionConfig",
    "SchedulerConfig",
    "ZeroConfig",
    "batch_for",
    "given_values",
    "load",
    "parse",
    "read",
    "resolve_auto",
    "resolve_batch",
    "schema",
    "value_of",
]


def parse(config: str | Mapping[str, Any], source: str | None = None) -> ParsedConfig:
    """Parses and checks a configuration given as JSON text or as a dictionary.

    `source`: its name in errors. Batch sizes are not completed; see :func:`resolve_batch`.
    """
    if isinstance(config, str):
        return _C.parse_config(config, source or "<string>")
    return _C.parse_config(_to_json(config, source or "<dict>"), source or "<dict>")


def _to_json(config: Mapping[str, Any], source: str) -> str:
    try:
        return json.dumps(config, default=_to_plain)
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply for a configuration") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{source}: {error}; expected JSON values") from None


def _to_plain(value: object) -> object:
    """Converts an object that JSON does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"got {type(value).__name__} {str(value)[:60]!r}")


def load(path: str | os.PathLike[str]) -> ParsedConfig:
    """Reads and checks the file `path`. If it does not exist, `path` may be its content as URL-safe
    base64."""
    return _C.load_config(os.fspath(path))


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of the file that :func:`load` reads, without comments and unchecked, except that
    duplicate keys are errors."""
    return json.loads(_C.plain_config_json(os.fspath(path)))


def of_any_form(config: str | os.PathLike[str] | Mapping[str, Any]) -> ParsedConfig:
    """Parses and checks a dictionary, or the file of a path."""
    return parse(config) if isinstance(config, Mapping) else load(config)


def given_values(parsed: ParsedConfig, section: str) -> dict[str, Any]:
    """The values that a configuration sets in a section, by their keys in it (``"params/lr"``)."""
    prefix = f"/{section}/"
    return {
        value.pointer.removeprefix(prefix): json.loads(value.value)
        for value in parsed.values
        if value.is_given and value.pointer.startswith(prefix)
    }


def value_of(parsed: ParsedConfig, pointer: str, default: Any = None) -> Any:
    """A configuration's value for a key; `default` if it is not set or "auto"."""
    found = (value for value in parsed.values if value.pointer == pointer and value.is_given)
    value = next((json.loads(value.value) for value in found if not value.is_auto), None)
    return default if value is None else value


def resolve_auto(
    parsed: ParsedConfig,
    *,
    world_size: int = 0,
    hidden_size: int = 0,
    total_steps: int = 0,
    warmup_steps: int | None = None,
) -> ParsedConfig:
    """Replaces values of ``"auto"`` by those that follow from the arguments (0: unknown)."""
    return _C.resolve_auto(
        parsed,
        world_size=world_size,
        hidden_size=hidden_size,
        total_steps=total_steps,
        warmup_steps=warmup_steps,
    )


def resolve_batch(given: BatchConfig, world_size: int) -> BatchConfig:
    """Infers the batch sizes that are 0, so that

    ``train_batch_size == micro_batch_size * accumulation_steps * world_size``.
    """
    return _C.resolve_batch(given, world_size)


def batch_for(parsed: ParsedConfig, world_size: int) -> BatchConfig:
    """The batch sizes on `world_size` data-parallel ranks: those of the configuration, completed by
    :func:`resolve_batch`, or those of its section ``elasticity``."""
    return _C.batch_for(parsed, world_size)


def schema() -> dict[str, Any]:
    """The JSON Schema of a configuration, for editors and other tools."""
    return json.loads(_C.config_schema())
