"""Mesh: which ranks hold the same part of a model that is divided among ranks."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from zerorun import _C, communicator
from zerorun.model.local_tensor import is_replica, mesh_ranks_of

__all__ = ["EngineRanks", "Mesh", "check_mesh", "data_communicator", "mesh_of", "ranks_of_group"]

_DATA = {
    *("data", "dp", "data_parallel", "replicate", "shard", "dp_replicate", "dp_shard"),
    *("fsdp", "ddp", "hsdp"),
}
_PIPELINE = {"pp", "pipe", "pipeline", "pipeline_parallel"}
_SEQUENCE = {"sp", "sequence", "sequence_parallel", "cp", "context", "context_parallel"}
_MODEL = {
    *("tp", "tensor", "tensor_parallel", "mp", "model", "model_parallel"),
    *("ep", "expert", "expert_parallel"),
    *_PIPELINE,
}


@dataclass(frozen=True)
class Mesh:
    """This rank's place in a job whose ranks may hold different parts of a model."""

    data_ranks: tuple[int, ...]  # ranks of the job that hold this part, in the order of their data
    tensor_rank: int = 0  # tensor-parallel rank; the first one counts replicas in norms
    model_rank: int | None = None  # the program's number of the part; None: by lowest rank
    sequence_size: int = 1  # ranks that share a sequence
    of_dtensors: bool = False  # parts are local tensors of DTensors, so full tensors can be made

    @property
    def data_size(self) -> int:
        """The number of ranks, or of groups that share a sequence, that have different data."""
        return len(self.data_ranks) // self.sequence_size

    def counts(self, parameter: nn.Parameter) -> bool:
        """True if this rank counts the parameter's gradient in norms.

        Every rank counts its part of a divided parameter; only one rank counts a replica.
        """
        if getattr(parameter, "ds_pipe_replicated", False):
            return False
        replica = is_replica(parameter)
        if replica is not None:
            return not replica
        marks = ("model_parallel", "tensor_model_parallel")
        return self.tensor_rank == 0 or any(getattr(parameter, name, False) for name in marks)


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
        if mesh is None or len(mesh.data_ranks) == job.world_size:
            return cls(job, job, mesh)
        table = _table(job, mesh)
        firsts = sorted({first for first, *_ in table})
        for rank, (first, size, place, _) in enumerate(table):
            members = sorted(row[2] for row in table if row[0] == first)
            if members != list(range(size)) or size != len(mesh.data_ranks):
                raise _C.ConfigError(
                    f"data-parallel groups: rank {rank} is number {place} of {size} ranks that "
                    f"begin with rank {first}, and the groups of all ranks do not fit together: "
                    "expected groups of one size that share no rank"
                )
        part = firsts.index(min(mesh.data_ranks))
        numbers = [{row[3] for row in table if row[0] == first} for first in firsts]
        flat = {number for given in numbers for number in given}
        named = len(flat) == len(firsts) == sum(map(len, numbers)) and min(flat) >= 0
        place = mesh.data_ranks.index(job.rank)
        data = job.split(part, place, f"data-parallel group {part}")
        number = next(iter(numbers[part])) if named else part
        return cls(data, job, mesh, part, number, len(firsts))


def _table(job: _C.Communicator, mesh: Mesh) -> list[list[int]]:
    """For each rank: its group's first rank and size, its place there, the part's number."""
    number = -1 if mesh.model_rank is None else mesh.model_rank
    ranks = mesh.data_ranks
    own = torch.tensor([min(ranks), len(ranks), ranks.index(job.rank), number])
    table = torch.empty(4 * job.world_size, dtype=own.dtype)
    job.all_gather(own, table, "data-parallel groups")
    return table.view(-1, 4).tolist()


@functools.cache
def data_communicator(data_ranks: tuple[int, ...]) -> _C.Communicator:
    """The communicator of these ranks of the job, for parameters that have no engine yet.

    Collective: every rank of the job passes its own group.
    """
    world = communicator.world()
    return EngineRanks.of(world, Mesh(data_ranks)).data


def ranks_of_group(group: Any, what: str) -> tuple[int, ...]:
    """The job's ranks in a torch process group. Raises ConfigError unless this rank is in it.

    `group` may also be a list of ranks. `what`: its name in errors.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        raise _C.ConfigError(
            f"{what}: needs torch.distributed: call init_process_group() before, and make the "
            "groups with it"
        )
    if isinstance(group, str):
        raise _C.ConfigError(f"{what}: got '{group}', expected a process group or a list of ranks")
    if isinstance(group, Sequence):
        ranks = tuple(int(rank) for rank in group)
    else:
        ranks = tuple(distributed.get_process_group_ranks(group))
    if distributed.get_rank() not in ranks:
        raise _C.ConfigError(
            f"{what}: got ranks {list(ranks)}, and rank {distributed.get_rank()} is not one of "
            "them: give each rank the group that it is in"
        )
    return ranks


def mesh_of(mpu: Any = None, device_mesh: Any = None, mesh_param: Any = None) -> Mesh | None:
    """The mesh that one of the arguments describes; None if all are None.

    - `mpu`: an object or module like Megatron's ``parallel_state``, with
      ``get_data_parallel_group()`` and, if ranks hold different parts of the model,
      ``get_model_parallel_rank()`` or ``get_tensor_model_parallel_rank()``.
    - `device_mesh`: a torch DeviceMesh with named dimensions (docs/meshes.md lists the names).
    - `mesh_param`: the same, or the sizes of data and sequence parallelism.

    Raises ConfigError if more than one is given, and for meshes that are not supported.
    """
    given = {"mpu": mpu, "device_mesh": device_mesh, "mesh_param": mesh_param}
    present = [name for name, value in given.items() if value is not None]
    if len(present) > 1:
        raise _C.ConfigError(f"initialize: got {' and '.join(present)}: give one of them")
    if mpu is not None:
        return _of_mpu(mpu)
    if mesh_param is not None and isinstance(mesh_param, Sequence):
        return _of_sizes(mesh_param)
    found = device_mesh if device_mesh is not None else mesh_param
    return None if found is None else _of_device_mesh(found)


def _of_sizes(sizes: Sequence[int]) -> Mesh:
    world_size = communicator.world().world_size
    whole = len(sizes) == 2 and all(isinstance(size, int) and size > 0 for size in sizes)
    if not whole or math.prod(sizes) != world_size:
        raise _C.ConfigError(
            f"mesh_param: got {tuple(sizes)}, expected the sizes of data and sequence parallelism, "
            f"whose product is the job's {world_size} ranks"
        )
    return Mesh(tuple(range(world_size)), sequence_size=int(sizes[1]))


def _asked(mpu: Any, *names: str) -> Any:
    """Calls the first of these methods that the mpu has; None without any."""
    for name in names:
        query = getattr(mpu, name, None)
        if query is not None:
            return query()
    return None


def _of_mpu(mpu: Any) -> Mesh:
    sequence_size = _asked(mpu, "get_sequence_parallel_world_size") or 1
    names = ["get_data_parallel_group"]
    if sequence_size > 1:
        names.insert(0, "get_sequence_data_parallel_group")
    group = _asked(mpu, *names)
    if group is None:
        raise _C.ConfigError(
            "mpu: has no get_data_parallel_group(), which says which ranks hold the same part of "
            "the model: expected an object like Megatron's parallel_state"
        )
    ranks = ranks_of_group(group, "mpu.get_data_parallel_group()")
    world_size = torch.distributed.get_world_size()
    if sequence_size > 1 and len(ranks) < world_size:
        raise _C.ConfigError(
            f"mpu: {sequence_size} ranks share a sequence and the model is divided among others: "
            "sequence and model parallelism together are not supported; use one of them"
        )
    if len(ranks) == world_size:
        return Mesh(ranks, sequence_size=sequence_size)
    tensor_names = ("tensor_model_parallel", "slice_parallel", "model_parallel")
    tensor_rank = _asked(mpu, *(f"get_{name}_rank" for name in tensor_names))
    if tensor_rank is None:
        raise _C.ConfigError(
            "mpu: get_model_parallel_rank() and get_tensor_model_parallel_rank() are missing or "
            "give None: expected this rank's number among those that hold one copy of the model, "
            "so that norms count each parameter once"
        )
    return Mesh(
        ranks,
        tensor_rank,
        _asked(mpu, "get_model_parallel_rank", "get_tensor_model_parallel_rank"),
    )


def _of_device_mesh(mesh: Any) -> Mesh:
    ranks, names = getattr(mesh, "mesh", None), getattr(mesh, "mesh_dim_names", None)
    if not isinstance(ranks, torch.Tensor):
        raise _C.ConfigError(
            f"device_mesh: got {type(mesh)}, expected torch's DeviceMesh, as init_device_mesh makes"
        )
    names = ("dp",) if names is None and ranks.dim() == 1 else tuple(names or ())
    is_data = [name in _DATA for name in names]
    if not any(is_data):
        raise _C.ConfigError(
            f"device_mesh: its dimensions are named {names or None}, expected one of "
            f"{', '.join(sorted(_DATA))} among them: init_device_mesh(device, (2, 2), "
            "mesh_dim_names=('dp', 'tp'))"
        )
    known = _DATA | _SEQUENCE | _MODEL
    for name in names:
        if name not in known:
            nearest = _C.nearest_name(name, sorted(known))
            hint = f" (did you mean '{nearest}'?)" if nearest else ""
            raise _C.ConfigError(
                f"device_mesh: a dimension is named '{name}'{hint}: expected, for ranks with other "
                f"data, one of {', '.join(sorted(_DATA))}; for parts of the model, of "
                f"{', '.join(sorted(_MODEL))}; for parts of a sequence, of "
                f"{', '.join(sorted(_SEQUENCE))}"
            )
    world = communicator.world()
    if ranks.numel() != world.world_size:
        raise _C.ConfigError(
            f"device_mesh: has {ranks.numel()} ranks, expected all {world.world_size} of the job: "
            "give the whole mesh, not a slice of it"
        )
    place = (ranks == world.rank).nonzero()[0].tolist()
    index = tuple(slice(None) if data else at for data, at in zip(is_data, place, strict=True))
    sizes = dict(zip(names, ranks.shape, strict=True))
    sequence_size = math.prod(size for name, size in sizes.items() if name in _SEQUENCE)
    model = {n: (at, sizes[n]) for n, at in zip(names, place, strict=True) if n not in _DATA}
    if sequence_size > 1:
        if any(size > 1 for name, (_, size) in model.items() if name not in _SEQUENCE):
            raise _C.ConfigError(
                f"device_mesh: dimensions {names}: sequence and model parallelism together are not "
                "supported; use one of them"
            )
        return Mesh(tuple(ranks.flatten().tolist()), sequence_size=sequence_size)
    inside = {name: value for name, value in model.items() if name not in _PIPELINE}
    data_ranks = tuple(ranks[index].flatten().tolist())
    return Mesh(data_ranks, _number(inside), _number(model), of_dtensors=len(inside) == len(model))


def _number(places: dict[str, tuple[int, int]]) -> int:
    """The number of a place, counted with the last dimension running first."""
    number = 0
    for at, size in places.values():
        number = number * size + at
    return number
