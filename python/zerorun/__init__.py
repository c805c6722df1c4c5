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
from zerorun.lazy_names import lazy_names

if TYPE_CHECKING:
    from zerorun import experts, sequence, zero
    from zerorun.engine import ZeroEngine
    from zerorun.initialization import initialize
    from zerorun.model.private_partition import Initializer
    from zerorun.model.units import UnitPolicy
    from zerorun.optimizers.optimizer import ZeroOptimizer
    from zerorun.sharded_optimizer import ShardedOptimizer
    from zerorun.sharding import shard

__all__ = [
    "CheckpointError",
    "CommError",
    "ConfigError",
    "DeviceError",
    "Error",
    "Initializer",
    "InternalError",
    "IoError",
    "NumericError",
    "ShardedOptimizer",
    "UnitPolicy",
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

# Names that need PyTorch.
_other = lazy_names(
    __name__,
    {
        "sharded_optimizer": "ShardedOptimizer",
        "engine": "ZeroEngine",
        "optimizers.optimizer": "ZeroOptimizer",
        "model.private_partition": "Initializer",
        "model.units": "UnitPolicy",
        "initialization": "initialize",
        "sharding": "shard",
    },
)


def __getattr__(name: str) -> Any:
    if name in {"experts", "nn", "sequence", "zero"}:
        return importlib.import_module(f"zerorun.{name}")
    return _other(name)
