"""ZeRO-sharded training: :func:`shard` with keywords, :func:`initialize` with a ds_config.json.

The core is C++ and includes neither Python nor PyTorch; importing this package loads it, starts
nothing, and touches no accelerator; it sets one variable for NCCL. What needs PyTorch loads it when
it is used. The training program and the launcher are the command ``zerorun``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from zerorun import config, environment
from zerorun._C import (
    CheckpointError,
    CommError,
    ConfigError,
    DeviceError,
    Error,
    InternalError,
    IoError,
    NumericError,
    __version__,
)

if TYPE_CHECKING:
    from zerorun import experts, sequence, zero
    from zerorun.engine import ZeroEngine
    from zerorun.initialization import initialize
    from zerorun.optimizers.optimizer import ZeroOptimizer
    from zerorun.sharded_optimizer import ShardedOptimizer
    from zerorun.sharding import shard

__all__ = [
    "CheckpointError",
    "CommError",
    "ConfigError",
    "DeviceError",
    "Error",
    "InternalError",
    "IoError",
    "NumericError",
    "ShardedOptimizer",
    "ZeroEngine",
    "ZeroOptimizer",
    "__version__",
    "config",
    "experts",
    "initialize",
    "nn",
    "sequence",
    "shard",
    "zero",
]

environment.order_collectives()

# Names that need PyTorch, and where they are.
_LAZY = {
    "ShardedOptimizer": "zerorun.sharded_optimizer",
    "ZeroEngine": "zerorun.engine",
    "ZeroOptimizer": "zerorun.optimizers.optimizer",
    "initialize": "zerorun.initialization",
    "shard": "zerorun.sharding",
}


def __getattr__(name: str) -> Any:
    if name in {"experts", "nn", "sequence", "zero"}:
        return importlib.import_module(f"zerorun.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'zerorun' has no attribute '{name}'")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
