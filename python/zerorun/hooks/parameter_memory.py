"""Moving a model's parameters into an engine's memory, and out of it again."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.utils.dlpack
from torch import nn

from zerorun import _C
from zerorun.model.engine_ranks import EngineRanks
from zerorun.model.local_tensor import local_of
from zerorun.model.model_layout import ModelLayout
from zerorun.model.partition import partition_of

__all__ = [
    "by_parameter",
    "full_view",
    "keep_precise",
    "load_parameters",
    "masters_from_parameters",
    "tensor_of",
    "write_full",
]


# After so many changed elements, those that are stored in files are written back.
_MAX_CHANGED = 1 << 22


def tensor_of(capsule: object) -> torch.Tensor:
    """The memory behind a DLPack capsule, without a copy."""
    return torch.utils.dlpack.from_dlpack(capsule)


def full_view(engine: _C.Engine, layout: ModelLayout, parameter: nn.Parameter) -> torch.Tensor:
    """The full parameter in the engine's memory, in its shape."""
    return layout.shaped(parameter, tensor_of(engine.parameter(layout.ids[parameter])))


def by_parameter(engine: _C.Engine) -> dict[int, list[_C.StateInterval]]:
    """This rank's intervals by parameter id."""
    intervals: dict[int, list[_C.StateInterval]] = {}
    for interval in engine.state_intervals():
        intervals.setdefault(interval.parameter, []).append(interval)
    return intervals


def _are_on_gpus(layout: ModelLayout, job: _C.Communicator) -> bool:
    """True if all ranks have all values on their GPUs, but for parts of zero.Init's. Collective."""
    values = [local_of(parameter) for parameter in layout.names if partition_of(parameter) is None]
    answer = torch.tensor([all(not tensor.is_cpu for tensor in values)], dtype=torch.int64)
    job.all_reduce(answer, "min", "initial values are on GPUs")
    return bool(answer.item())


def _full_values(
    parameter: nn.Parameter, layout: ModelLayout, communicator: _C.Communicator, *, on_gpus: bool
) -> torch.Tensor:
    """Rank 0's values on all ranks, flat. Collective."""
    partition = partition_of(parameter)
    if partition is not None:
        return layout.flat(parameter, partition.gather_full())
    values = layout.flat(parameter, local_of(parameter))
    if communicator.world_size > 1:
        broadcast = communicator.broadcast_on_gpu if on_gpus else communicator.broadcast
        broadcast(values, 0, f"initial values of {layout.names[parameter]}")
    return values


def _to_write(engine: _C.Engine, layout: ModelLayout) -> Iterator[nn.Parameter]:
    """Every parameter, for the caller to change this rank's part of it.

    Changes to parameters that are stored in files are written back in between, so that few of them
    are in memory at a time. Collective.
    """
    changed = 0
    for parameter in layout.names:
        yield parameter
        changed += layout.shapes[parameter].numel()
        if changed >= _MAX_CHANGED:
            engine.accept_changes()
            changed = 0


def load_parameters(
    engine: _C.Engine,
    layout: ModelLayout,
    ranks: EngineRanks,
    *,
    round_masters: bool = False,
) -> None:
    """Fills the engine's masters and parameters with the model's values, those of the first rank
    that has them. Collective.

    `round_masters`: masters get the values that the parameters have in their own dtype.
    """
    on_gpus = _are_on_gpus(layout, ranks.job)
    with torch.no_grad():
        for parameter in _to_write(engine, layout):
            communicator = ranks.holding(layout.ranks_of.get(parameter, 0))
            values = _full_values(parameter, layout, communicator, on_gpus=on_gpus)
            for interval in engine.state_intervals(layout.ids[parameter]):
                part = values[interval.begin : interval.begin + interval.numel]
                parameter_part = tensor_of(interval.param).copy_(part)
                if interval.master is not None:
                    master = tensor_of(interval.master)
                    master.copy_(parameter_part if round_masters else part)
    engine.refresh_from_masters()


def write_full(engine: _C.Engine, index: int, flat: torch.Tensor) -> None:
    """Writes new full values of one parameter, as ModelLayout.flat has them and the same on every
    rank, into this rank's part of it and of its master. Collective.
    """
    engine.accept_changes()
    with torch.no_grad():
        if not engine.is_sharded(index):
            tensor_of(engine.parameter(index)).copy_(flat)
        for interval in engine.state_intervals(index):
            part = flat[interval.begin : interval.begin + interval.numel]
            tensor_of(interval.param).copy_(part)
            if interval.master is not None:
                tensor_of(interval.master).copy_(part)
    engine.accept_changes()


def masters_from_parameters(
    engine: _C.Engine, layout: ModelLayout, *, only_changed: bool = False
) -> None:
    """Copies the parameters' values into their masters. Collective.

    `only_changed`: a master that rounds to its parameter stays as precise as it is.
    """
    with torch.no_grad():
        for parameter in _to_write(engine, layout):
            for interval in engine.state_intervals(layout.ids[parameter]):
                if interval.master is None:
                    continue
                master = tensor_of(interval.master)
                if only_changed:
                    keep_precise(interval, master)
                else:
                    master.copy_(tensor_of(interval.param))
    engine.refresh_from_masters()


def keep_precise(interval: _C.StateInterval, precise: torch.Tensor) -> None:
    """Gives the master the values that round to the parameter's, and of others the parameter's."""
    values = tensor_of(interval.param)
    same = precise.to(values.dtype) == values
    tensor_of(interval.master).copy_(torch.where(same, precise, values.to(precise.dtype)))
