"""deepspeed.utils: what has no module here; the names that it passes on are found in theirs."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from zerorun.dataloader import RepeatingLoader

from deepspeed.comm import is_initialized
from deepspeed.utils import groups
from deepspeed.utils.logging import log_dist, logger

__all__ = [
    "OnDevice",
    "RepeatingLoader",
    "groups",
    "instrument_w_nvtx",
    "is_initialized",
    "log_dist",
    "logger",
]


def instrument_w_nvtx(function: Callable[..., Any]) -> Callable[..., Any]:
    """No profiler ranges."""
    return function


@contextlib.contextmanager
def OnDevice(  # noqa: N802 - DeepSpeed's name
    dtype: torch.dtype, device: str = "meta", enabled: bool = True
) -> Iterator[None]:
    """Tensors made within are of `dtype` on `device`."""
    if not enabled:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)
