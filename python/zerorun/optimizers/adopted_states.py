"""The states that a torch optimizer has already when an engine takes it over."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import all_or_none
from zerorun.shards.shards import Shards
from zerorun.shards.state_access import StateAccess


def take_states(shards: Shards, optimizer: torch.optim.Optimizer) -> None:
    """Gives the core's rule the states of a torch optimizer that it runs in the place of.

    Parameters without states begin at zero, as those that a core's rule has not updated. Raises
    ConfigError on every rank for states that the rule has none of, that differ in their number of
    steps, or that only some ranks have. Collective.
    """
    layout = shards.layout
    given: dict[nn.Parameter, dict[str, Any]] = {
        parameter: state
        for parameter in layout.group_of
        if layout.is_trainable(parameter) and (state := optimizer.state.get(parameter))
    }
    count = torch.tensor([len(given), -len(given)])
    shards.communicator.all_reduce(count, "min", "states that the optimizer has")
    if count[0] != -count[1]:
        raise _C.ConfigError(
            f"initialize: the optimizer has states of {int(count[0])} parameters on one rank and "
            f"of {-int(count[1])} on another: load them on all ranks, or none"
        )
    if not given:
        return
    with all_or_none(shards.communicator, "initialize"):
        steps = {int(state.get("step", 0)) for state in given.values()}
        if len(steps) > 1:
            raise _C.ConfigError(
                f"initialize: the optimizer has made {min(steps)} steps of one parameter and "
                f"{max(steps)} of another; {shards.settings.optimizer.type} counts them for all "
                "together: give the optimizer to initialize before its first step"
            )
        values = [
            (parameter, name, value)
            for parameter, state in given.items()
            for name, value in _tensors(shards, parameter, state).items()
        ]
    StateAccess(shards).set_all(values)
    shards.core.set_progress(steps.pop(), shards.core.skipped_steps)


def _tensors(
    shards: Shards, parameter: nn.Parameter, state: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """The states with an element for each of the parameter's. ConfigError unless they are those of
    the core's rule."""
    layout = shards.layout
    tensors = {
        name: value
        for name, value in state.items()
        if name != "step" and isinstance(value, torch.Tensor)
    }
    names = shards.core.state_names(layout.ids[parameter])
    expected = {name for name in names if not name.endswith("_scale")}
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    shape = tuple(layout.shapes[parameter])
    if shapes != dict.fromkeys(expected, shape):
        raise _C.ConfigError(
            f"initialize: the optimizer's states of {layout.names[parameter]} have shapes "
            f"{shapes}, expected {dict.fromkeys(sorted(expected), shape)}: give it without states "
            "(optimizer.state.clear()), or those of the whole parameter"
        )
    return tensors
