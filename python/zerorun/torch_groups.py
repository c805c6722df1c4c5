"""PyTorch's own process groups, which scripts use beside the engine."""

from __future__ import annotations

import atexit
import functools
import gc
import time

import torch

__all__ = ["end_at_exit"]


@functools.cache
def end_at_exit() -> None:
    """From the first call on, gloo's threads end before the interpreter does.

    PyTorch's group lets its threads run on at exit. One that drops the last tensor of a collective
    while the interpreter ends aborts the process (std::terminate), after a successful run.
    """
    atexit.register(_end)


def _end() -> None:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return
    gc.collect()
    distributed.destroy_process_group()
    gc.collect()
    time.sleep(0.1)  # for groups that something still refers to
