"""Helpers that scripts import."""

from typing import Any


def is_zero_supported_optimizer(optimizer: Any) -> bool:
    """Every torch optimizer runs on shards."""
    return True


class ZeRORuntimeException(RuntimeError):  # noqa: N818 - DeepSpeed's name
    """For scripts that catch it; zerorun raises zerorun.Error."""
