"""Whose memory a model's parameters are: an engine's from initialize to destroy."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
from torch import nn

from zerorun import _C
from zerorun.gather_hooks import GatherHooks
from zerorun.parameter_memory import by_parameter, full_view
from zerorun.zero.partition import EnginePartition, PrivatePartition, left_behind, partition_of

if TYPE_CHECKING:
    from zerorun.engine import ZeroEngine

__all__ = ["Addresses", "EngineReference", "give_back", "place_parameters"]


class EngineReference:
    """The engine of a parameter, which copies and pickles of the parameter do not have."""

    def __init__(self, engine: ZeroEngine) -> None:
        self._engine = weakref.ref(engine)

    def __call__(self) -> ZeroEngine | None:
        return self._engine()

    __reduce__ = left_behind


def place_parameters(engine: ZeroEngine) -> GatherHooks | None:
    """From here on the model's parameters are the engine's memory; stage 3 has hooks."""
    layout = engine.layout
    reference = EngineReference(engine)
    for parameter in layout.names:
        parameter._zerorun_engine = reference
    if engine.zero_optimization_stage() < 3:
        for parameter in layout.names:
            partition = partition_of(parameter)
            if partition is not None:
                partition.detach()
            parameter.data = full_view(engine.core, layout, parameter)
        return None
    hooks = GatherHooks(engine.module, engine.core, layout, engine.device)
    intervals = by_parameter(engine.core)
    for unit in hooks.units:
        for parameter in unit.parameters:
            own = intervals.get(layout.ids[parameter], [])
            EnginePartition(engine, unit, parameter, own)
    return hooks


class Addresses:
    """Where an engine put the parameters that stay in their place: all below stage 3."""

    def __init__(self, engine: ZeroEngine) -> None:
        names = {} if engine.zero_optimization_stage() == 3 else engine.layout.names
        self._parameters = list(names)
        self._names = list(names.values())
        self._expected = self._read()

    def _read(self) -> list[int]:
        return list(map(torch.Tensor.data_ptr, self._parameters))

    def check(self) -> None:
        """Raises ConfigError naming a parameter whose memory the program has replaced since."""
        found = self._read()
        if found == self._expected:
            return
        pairs = zip(self._names, self._expected, found, strict=True)
        name = next(name for name, expected, address in pairs if expected != address)
        raise _C.ConfigError(
            f"parameter {name}: its .data was replaced after initialize, so steps would no longer "
            "reach it: change the values in place (parameter.data.copy_(values)), and move or cast "
            "the model before initialize"
        )


def give_back(engine: ZeroEngine, parameter: nn.Parameter) -> None:
    """An ordinary parameter again; at stage 3 each rank keeps its part, as under zero.Init."""
    partition = partition_of(parameter)
    parameter.grad = None
    del parameter._zerorun_engine
    if partition is None:
        parameter.data = full_view(engine.core, engine.layout, parameter).clone()
        return
    full = partition.gather_full()
    partition.detach()
    parameter.data = full
    PrivatePartition(parameter, engine.communicator)
