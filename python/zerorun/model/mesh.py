"""Mesh: which ranks hold the same part of a model that is divided among ranks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from zerorun import _C
from zerorun.model.local_tensor import is_divided, is_replica, mesh_ranks_of


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
