"""The communicators of this job's ranks: how ranks find each other, and one for each engine."""

from __future__ import annotations

import secrets
import sys
from typing import Any

from zerorun import _C, environment
from zerorun.stacks import answer_stack_requests

__all__ = ["duplicate", "world"]

_SECRET_BYTES = 32
_world: _C.Communicator | None = None


def world(timeout_s: float = 600.0) -> _C.Communicator:
    """The communicator of all ranks, made at the first call (collective).

    Ranks are those of ``torch.distributed`` when its default group exists, else those that the
    launcher's variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) describe; without them this is
    rank 0 of 1. Raises :class:`zerorun.ConfigError` when the variables contradict each other, and
    :class:`zerorun.CommError` when a rank does not come.
    """
    global _world  # noqa: PLW0603 - a process belongs to one job
    if _world is None:
        answer_stack_requests()
        _world = _connect(timeout_s)
    return _world


def _connect(timeout_s: float) -> _C.Communicator:
    group = _torch_group()
    if group is not None:
        return _connect_through(group.get_rank(), group.get_world_size(), group, timeout_s)
    if environment.meets_at_torchrun():
        # torchrun listens on MASTER_PORT itself, so the ranks meet at its store.
        from torch.distributed.rendezvous import rendezvous

        store, rank, world_size = next(iter(rendezvous("env://")))
        return _connect_through(rank, world_size, _StoreExchange(store, rank), timeout_s)
    return _C.connect_from_environment(timeout_s)


def _torch_group() -> Any:
    """torch.distributed with a default group, if the program has made one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


class _StoreExchange:
    """torch.distributed's broadcast_object_list on a bare store."""

    def __init__(self, store: Any, rank: int) -> None:
        self._store, self._rank = store, rank

    def broadcast_object_list(self, objects: list[str]) -> None:
        if self._rank == 0:
            self._store.set("zerorun/address", objects[0])
        else:
            objects[0] = self._store.get("zerorun/address").decode()


def _connect_through(rank: int, world_size: int, group: Any, timeout_s: float) -> _C.Communicator:
    if world_size == 1:
        return _C.connect(0, 1)
    address, store = [""], None
    if rank == 0:
        # Where rank 0 is reached, on one host or from others: the variable is that of torch, too.
        host = environment.master_address()
        secret = secrets.token_hex(_SECRET_BYTES)
        store = _C.make_store(host, 0, True, secret, timeout_s)
        address = [f"{host} {store.port} {secret}"]
    group.broadcast_object_list(address)
    host, port, secret = address[0].split()
    if store is None:
        store = _C.make_store(host, int(port), False, secret, timeout_s)
    return _C.connect(rank, world_size, store, "world", timeout_s, master_addr=host)


def duplicate(
    parent: _C.Communicator, timeout_s: float = 600.0, gpu: _C.Gpu | None = None
) -> _C.Communicator:
    """Makes another communicator of the same ranks, for an engine; on `gpu` if given. Collective.

    Engines run collectives on their own threads. With a communicator each, collectives of two
    engines cannot be mixed up.
    """
    return parent.duplicate(timeout_s, gpu)
