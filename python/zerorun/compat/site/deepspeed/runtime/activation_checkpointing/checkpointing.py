"""deepspeed.checkpointing on torch.utils.checkpoint."""

from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint
from deepspeed.utils.logging import logger

_configured = False


def configure(mpu_: Any = None, deepspeed_config: Any = None, **options: Any) -> None:
    """Accepted; partitioning and offloading of activations are not part of zerorun."""
    global _configured  # noqa: PLW0603 - DeepSpeed's interface is global
    wanted = [name for name, value in options.items() if value]
    if wanted:
        logger.warning("activation checkpointing: %s has no effect", ", ".join(wanted))
    _configured = True


def is_configured() -> bool:
    return _configured


def reset() -> None:
    """Nothing is kept between iterations."""


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """torch.utils.checkpoint.checkpoint."""
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False)
