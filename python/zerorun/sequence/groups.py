"""SequenceGroups: which ranks share a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from zerorun import _C, communicator
from zerorun import config as configuration
from zerorun.process_state import STATE


@dataclass(frozen=True)
class SequenceGroups:
    """This rank's place among those that share each sequence."""

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


def start(size: int, parts: Sequence[Sequence[int]] | None = None) -> SequenceGroups:
    """Makes groups of `size` neighbouring ranks that share each sequence. Collective.

    Engines that are made later use them. A second call with the same size returns the same groups.
    Needs torch.distributed's default group. Raises ConfigError if `size` does not divide the number
    of ranks or differs from that of an earlier call.

    `parts`: where ranks hold different parts of a model, the ranks that hold each part; neighbours
    in one of these share a sequence. Default: all ranks hold the model.
    """
    if STATE.sequence is not None:
        _check_same(STATE.sequence, size, parts)
        return STATE.sequence
    if not dist.is_available() or not dist.is_initialized():
        raise _C.ConfigError(
            "sequence parallelism needs torch.distributed: call init_process_group before"
        )
    world_size, rank = dist.get_world_size(), dist.get_rank()
    parts = [range(world_size)] if parts is None else parts
    data_size = len(parts[0]) // max(1, size)
    if size < 1 or any(len(part) != size * data_size for part in parts):
        whole = "the job's" if len(parts) == 1 else "those that hold a part of the model,"
        raise _C.ConfigError(
            f"sequence parallelism: {size} ranks per sequence do not divide {whole} {len(parts[0])}"
        )
    for part in parts:  # every rank makes every group
        for number in range(data_size):
            members = list(part[number * size : (number + 1) * size])
            group = dist.new_group(members)
            if rank in members:
                STATE.sequence = SequenceGroups(
                    size, group, dist.get_rank(group), number, data_size
                )
    assert STATE.sequence is not None
    return STATE.sequence


def _check_same(made: SequenceGroups, size: int, parts: Sequence[Sequence[int]] | None) -> None:
    """Raises ConfigError unless the job's groups are those that are asked for."""
    if made.size != size:
        raise _C.ConfigError(
            f"sequence parallelism: got {size} ranks per sequence, but the job's groups have "
            f"{made.size} already; a job has one size"
        )
    ranks = dist.get_process_group_ranks(made.group)
    own = next((part for part in parts or () if dist.get_rank() in part), None)
    if own is None:
        return
    first = list(own).index(dist.get_rank()) // size * size
    if ranks != list(own[first : first + size]):
        raise _C.ConfigError(
            f"sequence parallelism: ranks {ranks} share sequences already, and the mesh asks for "
            f"ranks {list(own[first : first + size])}: a job has one division"
        )


def current() -> SequenceGroups | None:
    """The groups made by :func:`start`, or None."""
    return STATE.sequence


def data_parallel_size(world_size: int) -> int:
    """The number of ranks, or of groups that share a sequence, that have different data."""
    return world_size if STATE.sequence is None else world_size // STATE.sequence.size


def start_configured(
    parsed: configuration.ParsedConfig,
    given: Mapping[str, Any],
    parts: Sequence[Sequence[int]] | None = None,
) -> configuration.ParsedConfig:
    """Makes the groups that `parsed` asks for; returns it with their dtype of communication.

    `given` is its content. `parts`: see :func:`start`. Collective where it asks for groups. Raises
    ConfigError for sizes that the number of ranks contradicts.
    """
    size = configuration.value_of(parsed, "/sequence_parallel_size", 1)
    if size > 1:
        start(size, parts)
    data_size = configuration.value_of(parsed, "/data_parallel_size")
    if data_size is not None:
        ranks = communicator.world(parsed.config.comm_timeout_s).world_size
        ranks = ranks if parts is None else len(parts[0])
        expected = data_parallel_size(ranks)
        if data_size != expected:
            raise _C.ConfigError(
                f"/data_parallel_size: got {data_size}, expected {expected}: {ranks} ranks, "
                f"{ranks // expected} for each sequence"
            )
    if size == 1:
        return parsed
    dtype = configuration.value_of(parsed, "/seq_parallel_communication_data_type", "fp32")
    changed = {**given, "communication_data_type": dtype}
    return configuration.parse(changed, parsed.config.source)
