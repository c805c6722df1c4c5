"""Expert parallelism: the experts of a layer are divided among ranks.

A parameter with ``allreduce = False`` and a ``group_name``, as DeepSpeed marks them, belongs to an
expert. Its gradient is reduced, and its states are sharded, over the ranks that hold the same
expert. As for all parameters, the gradient is the average over the data of all ranks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zerorun import _C
from zerorun.process_state import STATE


@dataclass(frozen=True)
class ExpertGroups:
    """This rank's groups: ranks that together hold all experts of a layer, and ranks that hold the
    same experts."""

    name: str  # the `group_name` of parameters
    ranks: tuple[int, ...]  # ranks of the job that hold different experts, in the experts' order
    data_ranks: tuple[int, ...]  # ranks of the job that hold the same experts as this rank
    group: Any  # torch process group of `ranks`, for the exchange of tokens
    data_group: Any  # torch process group of `data_ranks`
    data_first: bool = False  # neighbours hold the same experts

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def rank(self) -> int:
        """The index of this rank in `ranks`: which experts it holds."""
        return self.ranks.index(torch.distributed.get_rank())


def is_expert(parameter: Any) -> bool:
    """True if the parameter belongs to an expert (``allreduce = False``)."""
    return getattr(parameter, "allreduce", True) is False


def start(size: int, *, data_first: bool = False) -> ExpertGroups:
    """Returns the groups named ``ep_size_<size>``; the first call makes them and is collective.

    `size`: the number of neighbouring ranks that together hold the experts of a layer.
    `data_first`: neighbours hold the same experts instead, and every (world size / `size`)-th rank
    holds different ones. Needs torch.distributed's default group. Raises ConfigError if `size` does
    not divide the number of ranks, or if the groups exist with another `data_first`.
    """
    name = f"ep_size_{size}"
    if name in STATE.experts:
        found = STATE.experts[name]
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
    ranks, group = group_of_this_rank(neighbours)
    data_ranks, data_group = group_of_this_rank(strided)
    STATE.experts[name] = ExpertGroups(name, ranks, data_ranks, group, data_group, data_first)
    return STATE.experts[name]


def group_of_this_rank(lists: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], Any]:
    """Makes torch's groups of all lists, as every rank has to; returns this rank's list and group.
    Collective."""
    made = [(tuple(ranks), torch.distributed.new_group(list(ranks))) for ranks in lists]
    return next(pair for pair in made if torch.distributed.get_rank() in pair[0])


def known() -> dict[str, ExpertGroups]:
    """All groups made by :func:`start`, by name."""
    return dict(STATE.experts)


def named(name: Any, parameter: str) -> ExpertGroups:
    """The groups of this name. Raises ConfigError that names the parameter for an unknown name."""
    if name in STATE.experts:
        return STATE.experts[name]
    raise _C.ConfigError(
        f"parameter {parameter} is an expert's (allreduce = False) of group_name {name!r}, and "
        f"there is no such group, only: {', '.join(STATE.experts) or 'none'}; "
        "zerorun.experts.start(SIZE) makes 'ep_size_SIZE'"
    )
