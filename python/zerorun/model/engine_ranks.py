"""The ranks that train a model together: who holds the same part of it, and their communicators."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from zerorun import _C, communicator
from zerorun.model.local_tensor import is_divided, is_replica, mesh_ranks_of
from zerorun.process_state import STATE


@dataclass(frozen=True)
class Mesh:
    """This rank's place in a job whose ranks may hold different parts of a model."""

    # Ranks of the job that hold this part, in the order of their data: neighbours share a sequence.
    data_ranks: tuple[int, ...]
    tensor_rank: int = 0  # tensor-parallel rank; the first one counts replicas in norms
    tensor_ranks: tuple[int, ...] | None = None  # that hold the parts of a tensor; None: not known
    model_rank: int | None = None  # the program's number of the part; None: by lowest rank
    sequence_size: int = 1  # ranks that share a sequence
    shard_ranks: int | None = None  # ranks that share one copy, where the mesh says so (HSDP)
    of_dtensors: bool = False  # parts are local tensors of DTensors, so full tensors can be made

    @property
    def data_size(self) -> int:
        """The number of ranks, or of groups that share a sequence, that have different data."""
        return len(self.data_ranks) // self.sequence_size

    def counts(self, parameter: nn.Parameter) -> bool:
        """True if this rank counts the parameter's gradient in norms: its part of a divided one,
        and a replica on one rank only."""
        return not getattr(parameter, "ds_pipe_replicated", False) and not self.repeats(parameter)

    def repeats(self, parameter: nn.Parameter) -> bool:
        """True for a copy of what a tensor-parallel rank before this one has."""
        ranks = mesh_ranks_of(parameter)
        if ranks is None:
            return self.tensor_rank > 0 and not _is_marked(parameter)
        # Along dimensions of the mesh that the DTensor's own lacks it is a replica, too.
        outside = self.tensor_ranks is not None and self.tensor_ranks[0] not in ranks
        return outside or is_replica(parameter)

    def divides(self, parameter: nn.Parameter) -> bool:
        """True if this rank has a part of the parameter, and others have the rest."""
        if self.tensor_ranks is not None and len(self.tensor_ranks) == 1:
            return False  # Megatron marks the parameters of its layers anyway
        return is_divided(parameter) or _is_marked(parameter)


def _is_marked(parameter: nn.Parameter) -> bool:
    """True for Megatron's marks of a part."""
    marks = ("model_parallel", "tensor_model_parallel")
    return any(getattr(parameter, name, False) for name in marks)


def check_mesh(name: str, parameter: nn.Parameter, mesh: Mesh | None) -> None:
    """Raises ConfigError for a DTensor that is divided over data-parallel ranks of `mesh`."""
    found = mesh_ranks_of(parameter)
    if found is None:
        return
    shared = found if mesh is None else found & set(mesh.data_ranks)
    if len(shared) <= 1:
        return
    raise _C.ConfigError(
        f"parameter {name} is a DTensor over ranks {sorted(found)}, of which {sorted(shared)} are "
        "data-parallel here: give initialize the whole mesh (device_mesh=), with its data-parallel "
        "dimension named 'dp', and parallelize_module its other dimension alone (mesh['tp'])"
    )


@dataclass
class EngineRanks:
    """The communicators of an engine."""

    data: _C.Communicator  # of the ranks that hold the same part of the model
    job: _C.Communicator  # of all
    mesh: Mesh | None = None
    part: int = 0
    model_rank: int = 0
    model_size: int = 1
    tensor: _C.Communicator | None = None  # of those that hold the parts of this rank's tensors
    experts: dict[str, _C.Communicator] = field(default_factory=dict)  # by group name

    @property
    def data_ranks(self) -> tuple[int, ...] | None:
        """The ranks of the job that are in `data`; None: all."""
        return self.mesh.data_ranks if self.mesh is not None and self.model_size > 1 else None

    def holding(self, index: int) -> _C.Communicator:
        """The communicator of the ranks that hold a parameter. `index`: of ModelLayout.ranks_of."""
        return self.data if index == 0 else list(self.experts.values())[index - 1]

    @classmethod
    def of(cls, job: _C.Communicator, mesh: Mesh | None) -> EngineRanks:
        """Makes the communicators. Collective. Raises ConfigError if the ranks' meshes contradict
        each other."""
        if mesh is None or mesh.data_ranks == tuple(range(job.world_size)):
            return cls(job, job, mesh)
        parts = parts_of(job, mesh)
        part = next(index for index, ranks in enumerate(parts) if job.rank in ranks)
        data = job.split(part, parts[part].index(job.rank), f"data-parallel group {part}")
        number = _program_number(job, mesh, parts)[part]
        made = cls(data, job, mesh, part, number, len(parts))
        if mesh.tensor_ranks is not None and len(mesh.tensor_ranks) > 1:
            first = min(mesh.tensor_ranks)
            name = f"tensor-parallel group of rank {first}"
            made.tensor = job.split(first, mesh.tensor_rank, name)
        return made


def parts_of(job: _C.Communicator, mesh: Mesh) -> list[list[int]]:
    """The ranks that hold each part of the model, in the order of their data; by the lowest rank.

    Collective. Raises ConfigError if the ranks' meshes contradict each other.
    """
    own = mesh.data_ranks
    rows = _gathered(job, [min(own), len(own), own.index(job.rank)])
    places: dict[int, dict[int, int]] = {}
    for rank, (first, _, place) in enumerate(rows):
        places.setdefault(first, {})[place] = rank
    for rank, (first, size, place) in enumerate(rows):
        if sorted(places[first]) != list(range(size)) or size != len(own):
            raise _C.ConfigError(
                f"data-parallel groups: rank {rank} is number {place} of {size} ranks that "
                f"begin with rank {first}, and the groups of all ranks do not fit together: "
                "expected groups of one size that share no rank"
            )
    return [[ranks[place] for place in sorted(ranks)] for _, ranks in sorted(places.items())]


def _program_number(job: _C.Communicator, mesh: Mesh, parts: list[list[int]]) -> list[int]:
    """The program's number of each part; that of `parts` where it does not tell parts apart."""
    given = _gathered(job, [-1 if mesh.model_rank is None else mesh.model_rank])
    numbers = [{given[rank][0] for rank in ranks} for ranks in parts]
    flat = set().union(*numbers)
    if len(flat) != len(parts) or sum(map(len, numbers)) != len(parts) or min(flat) < 0:
        return list(range(len(parts)))
    return [number for each in numbers for number in each]


def _gathered(job: _C.Communicator, words: list[int]) -> list[list[int]]:
    """The words of every rank. Collective."""
    own = torch.tensor(words)
    table = torch.empty(len(words) * job.world_size, dtype=own.dtype)
    job.all_gather(own, table, "data-parallel groups")
    return table.view(-1, len(words)).tolist()


def data_communicator(data_ranks: tuple[int, ...]) -> _C.Communicator:
    """The communicator of these ranks of the job, for parameters that have no engine yet.

    Collective: every rank of the job passes its own group.
    """
    if data_ranks not in STATE.data:
        STATE.data[data_ranks] = EngineRanks.of(communicator.world(), Mesh(data_ranks)).data
    return STATE.data[data_ranks]
