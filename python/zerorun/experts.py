"""Expert parallelism: ranks that hold different experts of a layer, and those that hold the same.

A parameter with ``allreduce = False`` and a ``group_name`` (DeepSpeed's marks) is an expert's: its
gradient is added over the ranks of that group that hold the same expert, and its states are sharded
over them. Gradients are averaged over all ranks' data, as those of every parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from zerorun import _C

__all__ = ["ExpertGroups", "is_expert", "known", "named", "start"]

_known: dict[str, ExpertGroups] = {}  # a process belongs to one job, as torch's own groups


@dataclass(frozen=True)
class ExpertGroups:
    """This rank's place among the ranks that hold the experts of a layer together."""

    name: str  # as parameters say it in `group_name`
    ranks: tuple[int, ...]  # of the job, which hold different experts, in the experts' order
    data_ranks: tuple[int, ...]  # which hold the same experts as this rank
    group: Any  # torch's process group of `ranks`: tokens go to their experts in it
    data_group: Any  # of `data_ranks`
    data_first: bool = False  # neighbours hold the same experts

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def rank(self) -> int:
        """Which of the experts this rank holds."""
        return self.ranks.index(torch.distributed.get_rank())


def is_expert(parameter: Any) -> bool:
    """True if other ranks hold another expert in its place."""
    return getattr(parameter, "allreduce", True) is False


def start(size: int, *, data_first: bool = False) -> ExpertGroups:
    """The groups named ``ep_size_<size>``, made at the first call. Collective then.

    `size` neighbours hold the experts of a layer together. `data_first`: neighbours hold the same
    experts instead, and every (world size / `size`)-th rank the others. Raises ConfigError.
    """
    name = f"ep_size_{size}"
    if name in _known:
        found = _known[name]
        if found.data_first != data_first and min(size, len(found.data_ranks)) > 1:
            raise _C.ConfigError(
                f"expert parallelism: {name} was made with data_first={not data_first}, "
                f"and is asked for with data_first={data_first}: groups of that size have one order"
            )
        return found
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        raise _C.ConfigError(
            "expert parallelism needs torch.distributed: call init_process_group() before"
        )
    world_size = distributed.get_world_size()
    if size < 1 or world_size % size != 0:
        raise _C.ConfigError(
            f"expert parallelism: {size} ranks for the experts of a layer do not divide the job's "
            f"{world_size}"
        )
    copies = world_size // size
    neighbours = [tuple(range(i, i + size)) for i in range(0, world_size, size)]
    strided = [tuple(range(i, world_size, size)) for i in range(size)]
    if data_first:
        strided = [tuple(range(i, i + copies)) for i in range(0, world_size, copies)]
        neighbours = [tuple(range(i, world_size, copies)) for i in range(copies)]
    ranks, group = _make(neighbours)
    data_ranks, data_group = _make(strided)
    _known[name] = ExpertGroups(name, ranks, data_ranks, group, data_group, data_first)
    return _known[name]


def _make(lists: list[tuple[int, ...]]) -> tuple[tuple[int, ...], Any]:
    """Makes all groups, as every rank has to, and returns the one that this rank is in."""
    made = [(ranks, torch.distributed.new_group(list(ranks))) for ranks in lists]
    return next(pair for pair in made if torch.distributed.get_rank() in pair[0])


def known() -> dict[str, ExpertGroups]:
    """All that were made, by name."""
    return dict(_known)


def named(name: Any, parameter: str) -> ExpertGroups:
    """Raises ConfigError, which names the parameter that says so, for a name that is not known."""
    if name in _known:
        return _known[name]
    raise _C.ConfigError(
        f"parameter {parameter} is an expert's (allreduce = False) of group_name {name!r}, and "
        f"there is no such group, only: {', '.join(_known) or 'none'}; zerorun.experts.start(SIZE) "
        "makes 'ep_size_SIZE'"
    )
