"""ZeRO-sharded training from a DeepSpeed ``ds_config.json``.

The core is C++ and includes neither Python nor PyTorch; importing this package loads it, starts
nothing, and touches no accelerator. The training program and the launcher are the command
``zerorun``.
"""

from zerorun import config
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

__all__ = [
    "CheckpointError",
    "CommError",
    "ConfigError",
    "DeviceError",
    "Error",
    "InternalError",
    "IoError",
    "NumericError",
    "__version__",
    "config",
]
