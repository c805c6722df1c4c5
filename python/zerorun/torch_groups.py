"""The end of a program that has an engine: PyTorch's process groups, and what Ctrl-C leaves."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import io
import sys
import time

import torch

_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


@functools.cache
def end_at_exit() -> None:
    """From the first call on, gloo's threads end before the interpreter does, and Ctrl-C is quick.

    PyTorch's group lets its threads run on at exit. One that drops the last tensor of a collective
    while the interpreter ends aborts the process (std::terminate), after a successful run.
    """
    atexit.register(_end)


def _end() -> None:
    _end_groups()
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        _leave_the_rest()


def _leave_the_rest() -> None:
    """The interpreter does not look for cycles any more when it ends.

    Taking PyTorch's modules apart needs more than a second of a core, and several of a machine
    whose cores the other ranks use. What a program has written to open files is in them.
    """
    for each in gc.get_objects():
        if issubclass(type(each), _FILES):
            with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads
                each.flush()
    gc.freeze()


def _end_groups() -> None:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return
    gc.collect()
    distributed.destroy_process_group()
    gc.collect()
    time.sleep(0.1)  # for groups that something still refers to
