"""The communicator of this job's ranks: how they find each other, and how their programs end."""

import atexit
import contextlib
import faulthandler
import gc
import io
import os
import secrets
import signal
import sys
import threading
import time
from datetime import timedelta
from functools import cache
from typing import Any

from zerorun import _C, environment
from zerorun.process_state import STATE

_ADDRESS = "zerorun/address"  # the key in torch.distributed's store


def world(timeout_s: float = 600.0) -> _C.Communicator:
    """The communicator of all ranks, made at the first call (collective).

    Ranks are those of ``torch.distributed`` when its default group exists, else those that the
    launcher's variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) describe; without them this is
    rank 0 of 1. Raises :class:`zerorun.ConfigError` when the variables contradict each other, and
    :class:`zerorun.CommError` when a rank does not come.
    """
    if STATE.world is None:
        answer_stack_requests()
        STATE.world = _connect(timeout_s)
    return STATE.world


def check_not_alone(where: str, unless: str) -> None:
    """Raises ConfigError where each of the launcher's ranks would hold a whole model for itself.
    `unless`: the argument that says that this is meant."""
    started = _C.rank_from_environment().world_size
    if world().world_size == 1 < started:
        raise _C.ConfigError(
            f"{where}: the launcher started {started} ranks (WORLD_SIZE={started}), but "
            "torch.distributed's default group has 1, so each rank would train a whole model of "
            "its own: make no group before, or one of all ranks with deepspeed.init_distributed() "
            f"or torch.distributed.init_process_group(); {unless} says that it is meant"
        )


def _connect(timeout_s: float) -> _C.Communicator:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        # Its collectives would make a communicator of NCCL's, with its memory, for one string.
        store = distributed.distributed_c10d._get_default_store()
        return _connect_through(store, rank, world_size, timeout_s)
    if environment.meets_at_torchrun():
        # torchrun listens on MASTER_PORT itself, so the ranks meet at its store.
        from torch.distributed.rendezvous import rendezvous

        store, rank, world_size = next(iter(rendezvous("env://")))
        return _connect_through(store, rank, world_size, timeout_s)
    return _C.connect_from_environment(timeout_s)


def _connect_through(store: Any, rank: int, world_size: int, timeout_s: float) -> _C.Communicator:
    """`store`: torch.distributed's, at which all ranks meet."""
    if world_size == 1:
        return _C.connect(0, 1)
    if rank == 0:
        # Where rank 0 is reached, on one host or from others: the variable is that of torch, too.
        host = environment.master_address()
        secret = secrets.token_hex(32)
        own = _C.make_store(host, 0, True, secret, timeout_s)
        store.set(_ADDRESS, f"{host} {own.port} {secret}")
    else:
        host, port, secret = _address_in(store, timeout_s).split()
        own = _C.make_store(host, int(port), False, secret, timeout_s)
    return _C.connect(rank, world_size, own, "world", timeout_s, master_addr=host)


def _address_in(store: Any, timeout_s: float) -> str:
    try:
        store.wait([_ADDRESS], timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise _C.CommError(
            f"joining the other ranks: waited {timeout_s:g} s for rank 0's address at "
            f"torch.distributed's store ({error}): every rank calls initialize, shard or zero.Init"
        ) from error
    address: bytes = store.get(_ADDRESS)
    return address.decode()


def answer_stack_requests() -> None:
    """From now on a rank that waits for this process can see its Python stacks.

    They are written by a signal handler in C, so also while Python itself waits or is stuck. A
    program that uses the signal itself keeps it. Does nothing on other threads than the main one,
    which is the one that gets the signal and for which faulthandler then makes a stack.
    """
    if threading.current_thread() is threading.main_thread():
        _register()


@cache
def _register() -> None:
    number, name = _C.stack_requests()
    if signal.getsignal(number) == signal.SIG_DFL:
        # For as long as the process lives: the handler keeps the descriptor.
        faulthandler.register(number, os.memfd_create(name), all_threads=True)


# --- the end of a program that has an engine: PyTorch's process groups, and what Ctrl-C leaves ---

_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


@cache
def end_at_exit() -> None:
    """From the first call on, gloo's threads end before the interpreter does, and Ctrl-C is quick.

    PyTorch's group lets its threads run on at exit. One that drops the last tensor of a collective
    while the interpreter ends aborts the process (std::terminate), after a successful run.
    """
    atexit.register(_end)


def _end() -> None:
    """After Ctrl-C the interpreter does not look for cycles any more.

    Taking PyTorch's modules apart needs more than a second of a core, and several of a machine
    whose cores the other ranks use. What a program has written to open files is in them.
    """
    _end_groups()
    if getattr(sys, "last_type", None) is not KeyboardInterrupt:
        return
    for each in gc.get_objects():
        if issubclass(type(each), _FILES):
            with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads
                each.flush()
    gc.freeze()


def _end_groups() -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    gc.collect()
    distributed.destroy_process_group()
    gc.collect()
    time.sleep(0.1)  # for groups that something still refers to
