"""SequenceGroups: which ranks share a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from zerorun import _C

__all__ = ["SequenceGroups", "current", "data_parallel_size", "start"]

_current: SequenceGroups | None = None


@dataclass(frozen=True)
class SequenceGroups:
    """This rank's place: ranks [i * size, (i + 1) * size) share each sequence."""

    size: int
    group: Any  # the torch process group of these ranks
    rank: int  # in the group: the index of this rank's part of a sequence
    data_rank: int  # index of the group
    data_size: int  # number of groups, each of which has different sequences

    @classmethod
    def of(cls, group: Any) -> SequenceGroups:
        """Uses a process group of the program, which must consist of consecutive ranks."""
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        return cls(size, group, rank, dist.get_rank() // size, dist.get_world_size() // size)


def start(size: int) -> SequenceGroups:
    """Makes groups of `size` neighbouring ranks that share each sequence. Collective.

    Engines that are made later use them. A second call with the same size returns the same groups.
    Needs torch.distributed's default group. Raises ConfigError if `size` does not divide the number
    of ranks or differs from that of an earlier call.
    """
    global _current  # noqa: PLW0603 - a process belongs to one job, as torch's own groups
    if _current is not None:
        if _current.size != size:
            raise _C.ConfigError(
                f"sequence parallelism: got {size} ranks per sequence, but the job's groups have "
                f"{_current.size} already; a job has one size"
            )
        return _current
    if not dist.is_available() or not dist.is_initialized():
        raise _C.ConfigError(
            "sequence parallelism needs torch.distributed: call init_process_group before"
        )
    world_size, rank = dist.get_world_size(), dist.get_rank()
    if size < 1 or world_size % size != 0:
        raise _C.ConfigError(
            f"sequence parallelism: {size} ranks per sequence do not divide the job's {world_size}"
        )
    own = None
    for first in range(0, world_size, size):  # every rank makes every group
        members = range(first, first + size)
        group = dist.new_group(members)
        if rank in members:
            own = group
    _current = SequenceGroups.of(own)
    return _current


def current() -> SequenceGroups | None:
    """The groups made by :func:`start`, or None."""
    return _current


def data_parallel_size(world_size: int) -> int:
    """The number of ranks, or of groups that share a sequence, that have different data."""
    return world_size if _current is None else world_size // _current.size
