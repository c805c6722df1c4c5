"""The ranks that train a model together: who holds the same part of it, their communicators, and
what programs give as a mesh (an object like Megatron's, torch's DeviceMesh, or sizes)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from zerorun import _C, communicator
from zerorun.model.tensors import is_divided, is_replica, mesh_ranks_of
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
            return self.tensor_rank > 0 and not is_marked(parameter)
        # Along dimensions of the mesh that the DTensor's own lacks it is a replica, too.
        outside = self.tensor_ranks is not None and self.tensor_ranks[0] not in ranks
        return outside or is_replica(parameter)

    def divides(self, parameter: nn.Parameter) -> bool:
        """True if this rank has a part of the parameter, and others have the rest."""
        if self.tensor_ranks is not None and len(self.tensor_ranks) == 1:
            return False  # Megatron marks the parameters of its layers anyway
        return is_divided(parameter) or is_marked(parameter)


def is_marked(parameter: Any) -> bool:
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
    def of(cls, job: _C.Communicator, mesh: Mesh | None) -> "EngineRanks":
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
    own = torch.tensor(words, device="cpu")
    table = own.new_empty(len(words) * job.world_size)
    job.all_gather(own, table, "data-parallel groups")
    return table.view(-1, len(words)).tolist()


def data_communicator(data_ranks: tuple[int, ...]) -> _C.Communicator:
    """The communicator of these ranks of the job, for parameters that have no engine yet.

    Collective: every rank of the job passes its own group.
    """
    if data_ranks not in STATE.data:
        STATE.data[data_ranks] = EngineRanks.of(communicator.world(), Mesh(data_ranks)).data
    return STATE.data[data_ranks]


# --- what programs give as a mesh ---

_SHARD = {"shard", "dp_shard", "fsdp"}
_DATA = {*("data", "dp", "data_parallel", "replicate", "dp_replicate", "ddp", "hsdp"), *_SHARD}
_PIPELINE = {"pp", "pipe", "pipeline", "pipeline_parallel"}
_SEQUENCE = {"sp", "sequence", "sequence_parallel", "cp", "context", "context_parallel"}
_MODEL = {
    *("tp", "tensor", "tensor_parallel", "mp", "model", "model_parallel"),
    *("ep", "expert", "expert_parallel"),
    *_PIPELINE,
}


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
    try:
        listed = isinstance(group, Sequence) and not isinstance(group, str)
        found = group if listed else distributed.get_process_group_ranks(group)
        ranks = tuple(int(rank) for rank in found)
    except (KeyError, TypeError, ValueError):
        raise _C.ConfigError(
            f"{what}: got {group!r:.80}, expected a process group or a list of ranks"
        ) from None
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
    return _of_device_mesh(given[present[0]], present[0]) if present else None


def _of_sizes(sizes: Sequence[int]) -> Mesh:
    world_size = communicator.world().world_size
    whole = len(sizes) == 2 and all(isinstance(size, int) and size > 0 for size in sizes)
    if not whole or math.prod(sizes) != world_size:
        raise _C.ConfigError(
            f"mesh_param: got {tuple(sizes)}, expected the sizes of data and sequence parallelism, "
            f"whose product is the job's {world_size} ranks"
        )
    return Mesh(tuple(range(world_size)), sequence_size=int(sizes[1]))


def asked(mpu: Any, *names: str) -> Any:
    """Calls the first of these methods that the mpu has; None without any."""
    for name in names:
        query = getattr(mpu, name, None)
        if query is not None:
            return query()
    return None


def _of_mpu(mpu: Any) -> Mesh:
    sequence_size = asked(mpu, "get_sequence_parallel_world_size") or 1
    name = f"get_{'sequence_' if sequence_size > 1 else ''}data_parallel_group"
    group = asked(mpu, name)
    if group is None:
        raise _C.ConfigError(
            f"mpu: has no {name}(), which says which ranks hold the same part of the model: "
            "expected an object like Megatron's parallel_state"
        )
    ranks = ranks_of_group(group, f"mpu.{name}()")
    if sequence_size > 1:
        _check_sequence(mpu, ranks, sequence_size)
    if len(ranks) == torch.distributed.get_world_size():
        return Mesh(ranks, sequence_size=sequence_size)
    tensor_names = ("tensor_model_parallel", "slice_parallel", "model_parallel")
    tensor_rank = asked(mpu, *(f"get_{name}_rank" for name in tensor_names))
    if tensor_rank is None:
        raise _C.ConfigError(
            "mpu: get_model_parallel_rank() and get_tensor_model_parallel_rank() are missing or "
            "give None: expected this rank's number among those that hold one copy of the model, "
            "so that norms count each parameter once"
        )
    return Mesh(
        ranks,
        tensor_rank,
        _tensor_ranks(mpu, tensor_rank),
        asked(mpu, "get_model_parallel_rank", "get_tensor_model_parallel_rank"),
        sequence_size,
    )


def _tensor_ranks(mpu: Any, tensor_rank: int) -> tuple[int, ...] | None:
    """The ranks that hold the parts of this rank's tensors; None if the mpu does not tell."""
    names = ("tensor_model_parallel", "model_parallel")
    group = asked(mpu, *(f"get_{name}_group" for name in names))
    if group is None:
        return None
    ranks = ranks_of_group(group, "mpu.get_tensor_model_parallel_group()")
    size = asked(mpu, *(f"get_{name}_world_size" for name in names))
    # The model-parallel group of some programs has the stages of a pipeline, too.
    fits = len(ranks) == size and ranks.index(torch.distributed.get_rank()) == tensor_rank
    return ranks if fits else None


def _check_sequence(mpu: Any, ranks: tuple[int, ...], size: int) -> None:
    """Raises ConfigError unless neighbours among `ranks` share a sequence."""
    group = asked(mpu, "get_sequence_parallel_group")
    if group is None:
        return
    shared = ranks_of_group(group, "mpu.get_sequence_parallel_group()")
    first = ranks.index(torch.distributed.get_rank()) // size * size
    if shared != ranks[first : first + size]:
        raise _C.ConfigError(
            f"mpu: ranks {list(shared)} share a sequence, expected {size} neighbours among those "
            f"that hold the same part of the model, {list(ranks)}"
        )


def _of_device_mesh(mesh: Any, what: str) -> Mesh:
    ranks, names = getattr(mesh, "mesh", None), getattr(mesh, "mesh_dim_names", None)
    if not isinstance(ranks, torch.Tensor):
        raise _C.ConfigError(
            f"{what}: got {mesh!r:.80}, expected torch's DeviceMesh, as init_device_mesh makes"
        )
    if names is None and ranks.dim() > 1:
        raise _C.ConfigError(
            f"{what}: its {ranks.dim()} dimensions have no names, which say what they are: "
            "init_device_mesh(device, (2, 2), mesh_dim_names=('dp', 'tp'))"
        )
    names = ("dp",) if names is None else tuple(names)
    known = _DATA | _SEQUENCE | _MODEL
    for name in names:
        if name not in known:
            nearest = _C.nearest_name(name, sorted(known))
            hint = f" (did you mean '{nearest}'?)" if nearest else ""
            raise _C.ConfigError(
                f"{what}: a dimension is named '{name}'{hint}: expected, for ranks with other "
                f"data, one of {', '.join(sorted(_DATA))}; for parts of the model, of "
                f"{', '.join(sorted(_MODEL))}; for parts of a sequence, of "
                f"{', '.join(sorted(_SEQUENCE))}"
            )
    world = communicator.world()
    if ranks.numel() != world.world_size:
        raise _C.ConfigError(
            f"{what}: has {ranks.numel()} ranks, expected all {world.world_size} of the job: "
            "give the whole mesh, not a slice of it"
        )
    sizes = dict(zip(names, ranks.shape, strict=True))
    at = dict(zip(names, (ranks == world.rank).nonzero()[0].tolist(), strict=True))
    model = {name: (at[name], sizes[name]) for name in names if name in _MODEL}
    inside = {name: value for name, value in model.items() if name not in _PIPELINE}
    ordered, shard_ranks = _in_order_of_data(names, sizes)
    kept = [name for name in names if name not in _MODEL]
    index = tuple(at[name] if name in _MODEL else slice(None) for name in names)
    own = ranks[index].permute([kept.index(name) for name in ordered])
    tensor = ranks[tuple(slice(None) if name in inside else at[name] for name in names)]
    return Mesh(
        tuple(own.flatten().tolist()),
        _number(inside),
        tuple(tensor.flatten().tolist()),
        _number(model),
        math.prod(sizes[name] for name in names if name in _SEQUENCE),
        shard_ranks,
        of_dtensors=len(inside) == len(model),
    )


def _in_order_of_data(
    names: tuple[str, ...], sizes: dict[str, int]
) -> tuple[list[str], int | None]:
    """The dimensions whose ranks hold the same part, so that neighbours share a sequence, and the
    groups of those a copy; and the ranks of a copy, where dimensions for that are beside others."""
    data = [name for name in names if name in _DATA]
    shards = [name for name in data if name in _SHARD]
    inner = (shards if len(shards) < len(data) else []) + [n for n in names if n in _SEQUENCE]
    ordered = [name for name in data if name not in inner] + inner
    size = math.prod(sizes[name] for name in inner)
    return ordered, size if 0 < len(shards) < len(data) else None


def _number(places: dict[str, tuple[int, int]]) -> int:
    """The number of a place, counted with the last dimension running first."""
    number = 0
    for at, size in places.values():
        number = number * size + at
    return number
