"""Reading and checking a DeepSpeed configuration; docs/config.md lists every key.

All functions raise :class:`zerorun.ConfigError`, which lists every problem with its JSON pointer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from zerorun import _C
from zerorun._C import (
    BatchConfig,
    Config,
    ConfigValue,
    OptimizerConfig,
    ParsedConfig,
    PrecisionConfig,
    ZeroConfig,
)

__all__ = [
    "BatchConfig",
    "Config",
    "ConfigValue",
    "OptimizerConfig",
    "ParsedConfig",
    "PrecisionConfig",
    "ZeroConfig",
    "load",
    "parse",
    "resolve_batch",
    "schema",
]


def parse(config: str | Mapping[str, Any], source: str | None = None) -> ParsedConfig:
    """Checks a configuration given as JSON text or as a dictionary.

    ``source`` names it in messages. Batch sizes stay as given until :func:`resolve_batch`.
    """
    if isinstance(config, str):
        return _C.parse_config(config, source or "<string>")
    return _C.parse_config(json.dumps(config), source or "<dict>")


def load(path: str | os.PathLike[str]) -> ParsedConfig:
    """Reads and checks a file."""
    return _C.load_config(os.fspath(path))


def resolve_batch(given: BatchConfig, world_size: int) -> BatchConfig:
    """Infers the batch sizes that are 0, so that

    ``train_batch_size == micro_batch_size * accumulation_steps * world_size``.
    """
    return _C.resolve_batch(given, world_size)


def schema() -> dict[str, Any]:
    """The JSON Schema of a configuration, for editors and other tools."""
    return json.loads(_C.config_schema())
