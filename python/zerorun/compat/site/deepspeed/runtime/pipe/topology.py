"""Which ranks hold which part of a model: numbers of ranks, and torch's groups of them.

A grid is an `mpu` for initialize; the program's own code runs the stages.
"""

import itertools
import math
from collections import namedtuple
from collections.abc import Collection, Sequence
from typing import Any

import torch.distributed as dist
from zerorun import ConfigError
from zerorun.experts import group_of_this_rank


class ProcessTopology:
    """Ranks as the elements of an array with named axes, the last of which changes fastest."""

    def __init__(self, axes: Sequence[str], dims: Sequence[int]) -> None:
        if len(axes) != len(dims):
            raise ConfigError(f"ProcessTopology: got axes {list(axes)} and sizes {list(dims)}")
        self.axes, self.dims = list(axes), list(dims)
        self.ProcessCoord: Any = namedtuple("ProcessCoord", axes)  # type: ignore[misc]
        places = itertools.product(*map(range, dims))
        self.mapping = {self.ProcessCoord(*place): rank for rank, place in enumerate(places)}

    def get_rank(self, **coord_kwargs: int) -> int:
        """The rank at a place, of which every axis is given."""
        if set(coord_kwargs) != set(self.axes):
            raise ValueError(
                f"get_rank: got {list(coord_kwargs)}, expected each of {self.axes}; filter_match() "
                "takes some of them"
            )
        found = self.mapping.get(self.ProcessCoord(**coord_kwargs))
        if found is None:
            raise AssertionError(f"get_rank: {coord_kwargs} is outside of {self._sizes()}")
        return found

    def _sizes(self) -> dict[str, int]:
        return dict(zip(self.axes, self.dims, strict=True))

    def get_axis_names(self) -> list[str]:
        return self.axes

    def get_rank_repr(
        self,
        rank: int,
        omit_axes: Collection[str] = ("data", "pipe"),
        inner_sep: str = "_",
        outer_sep: str = "-",
    ) -> str:
        """A rank's place as text for names of files."""
        place = self.get_coord(rank)._asdict()
        shown = [axis for axis in self.axes if axis not in omit_axes]
        return outer_sep.join(f"{axis}{inner_sep}{place[axis]:02d}" for axis in shown)

    def get_dim(self, axis: str) -> int:
        """An axis' size, 0 if there is none of that name."""
        return self._sizes().get(axis, 0)

    def get_coord(self, rank: int) -> Any:
        """A rank's place, with a number for each axis."""
        for place, found in self.mapping.items():
            if found == rank:
                return place
        raise ValueError(f"rank {rank} is not in this topology of {self.world_size()} ranks")

    def get_axis_comm_lists(self, axis: str) -> list[list[int]]:
        """The ranks that differ along this axis only, for each place on the other axes."""
        if axis not in self.axes:
            return []
        number = self.axes.index(axis)
        found: dict[tuple[int, ...], list[int]] = {}
        for place, rank in self.mapping.items():
            found.setdefault(place[:number] + place[number + 1 :], []).append(rank)
        return list(found.values())

    def filter_match(self, **filter_kwargs: int) -> list[int]:
        """The ranks whose place has these numbers."""
        wanted = filter_kwargs.items()
        matches = (
            all(getattr(place, axis) == number for axis, number in wanted) for place in self.mapping
        )
        return list(itertools.compress(self.mapping.values(), matches))

    def get_axis_list(self, axis: str, idx: int) -> list[int]:
        """The ranks with one number on one axis."""
        return self.filter_match(**{axis: idx})

    def world_size(self) -> int:
        return math.prod(self.dims)

    def __str__(self) -> str:
        return str(self.mapping)


class PipeDataParallelTopology(ProcessTopology):
    """Stages of a pipeline, each on neighbouring ranks."""

    def __init__(self, num_pp: int, num_dp: int) -> None:
        super().__init__(["pipe", "data"], [num_pp, num_dp])


class PipeModelDataParallelTopology(ProcessTopology):
    """The same with tensor parallelism, whose ranks are the nearest."""

    def __init__(self, num_pp: int, num_mp: int, num_dp: int) -> None:
        super().__init__(["pipe", "data", "model"], [num_pp, num_dp, num_mp])


class PipelineParallelGrid:
    """This rank's place in a topology, and the groups of ranks along its axes. Collective.

    Methods have the names of Megatron's: `data_parallel` are the ranks with the same part of the
    model, `slice_parallel` those with the parts of the same tensors, `model_parallel` those that
    hold one whole model, stages and slices.
    """

    def __init__(self, topology: ProcessTopology | None = None, process_group: Any = None) -> None:
        self.global_rank, self.world_size = dist.get_rank(), dist.get_world_size()
        if topology is None:
            raise ConfigError(
                "PipelineParallelGrid: expected a topology, such as "
                "PipeModelDataParallelTopology(num_pp, num_mp, num_dp)"
            )
        if topology.world_size() != self.world_size:
            raise AssertionError(
                f"Invalid Grid: {topology._sizes()} are {topology.world_size()} ranks, and the job "
                f"has {self.world_size}"
            )
        self._topo = topology
        sizes = (max(topology.get_dim(axis), 1) for axis in ("data", "pipe", "model"))
        self.data_parallel_size, self.pipe_parallel_size, self.model_parallel_size = sizes
        self.slice_parallel_size = self.model_parallel_size
        self.stage_id, self.data_parallel_id = self.get_stage_id(), self.get_data_parallel_id()
        self.is_first_stage = self.stage_id == 0
        self.is_last_stage = self.stage_id == self.pipe_parallel_size - 1
        models = [topology.get_axis_list("data", i) for i in range(self.data_parallel_size)]
        alone = [[rank] for rank in range(self.world_size)]
        self._groups = {
            "whole": group_of_this_rank(models),
            "data": group_of_this_rank(self.dp_groups),
            "pipe": group_of_this_rank(self.pipe_groups),
            "slice": group_of_this_rank(topology.get_axis_comm_lists("model") or alone),
        }

    # The ranks with the same part of the model, for each part, and those of each pipeline's stages.
    dp_groups = property(lambda self: self._topo.get_axis_comm_lists("data"))
    pipe_groups = property(lambda self: self._topo.get_axis_comm_lists("pipe"))

    @property
    def p2p_groups(self) -> list[list[int]]:
        """Each rank with that of the next stage; after the last stage comes the first."""
        following = {
            rank: ranks[(stage + 1) % len(ranks)]
            for ranks in self.pipe_groups
            for stage, rank in enumerate(ranks)
        }
        return [[rank, following[rank]] for rank in range(self.world_size)]

    def get_stage_id(self) -> int:
        return self._topo.get_coord(self.global_rank).pipe

    def get_data_parallel_id(self) -> int:
        return self._topo.get_coord(self.global_rank).data

    def _is_grid_valid(self) -> bool:
        return self._topo.world_size() == self.world_size

    def stage_to_global(self, stage_id: int, **kwargs: int) -> int:
        """The rank of another stage at this rank's place on the other axes, or at those given."""
        place = self._topo.get_coord(self.global_rank)._asdict()
        return self._topo.get_rank(**{**place, "pipe": stage_id, **kwargs})


# What a grid's methods return.
_METHODS = {
    "topology": lambda grid: grid._topo,
    "get_global_rank": lambda grid: grid.global_rank,
    "get_pipe_parallel_rank": lambda grid: grid.stage_id,
    "get_pipe_parallel_world_size": lambda grid: grid.pipe_parallel_size,
    "get_pipe_parallel_group": lambda grid: grid._groups["pipe"][1],
    "get_data_parallel_rank": lambda grid: grid.data_parallel_id,
    "get_data_parallel_world_size": lambda grid: grid.data_parallel_size,
    "get_data_parallel_group": lambda grid: grid._groups["data"][1],
    "get_data_parallel_group_ranks": lambda grid: list(grid._groups["data"][0]),
    "get_model_parallel_rank": lambda grid: grid._groups["whole"][0].index(grid.global_rank),
    "get_model_parallel_world_size": lambda grid: len(grid._groups["whole"][0]),
    "get_model_parallel_group": lambda grid: grid._groups["whole"][1],
    "get_slice_parallel_rank": lambda grid: grid._groups["slice"][0].index(grid.global_rank),
    "get_slice_parallel_world_size": lambda grid: grid.slice_parallel_size,
    "get_slice_parallel_group": lambda grid: grid._groups["slice"][1],
}
for _name, _method in _METHODS.items():
    setattr(PipelineParallelGrid, _name, _method)
    # Megatron's names of the same.
    _megatrons = _name.replace("pipe_", "pipeline_model_").replace("slice_", "tensor_model_")
    setattr(PipelineParallelGrid, _megatrons, _method)
