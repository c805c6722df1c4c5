"""States of whole parameters, of a torch optimizer: loaded from its state_dict(), or taken over
with the optimizer itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import all_or_none
from zerorun.optimizers.saved_values import (
    COMMON_STATES,
    check_groups,
    check_one_step,
    whole_number,
    with_own_decay,
)
from zerorun.shards.shards import Shards
from zerorun.shards.state_access import StateAccess
from zerorun.shards.torch_states import is_per_element

_WHERE = "load_state_dict"


def indices_of(groups: list[dict[str, Any]]) -> dict[nn.Parameter, int]:
    """The parameters' numbers in torch's state dicts: their places in all groups together."""
    parameters = [parameter for group in groups for parameter in group["params"]]
    return {parameter: index for index, parameter in enumerate(parameters)}


class FullStates:
    """Loads the states of a torch optimizer into an engine's shards; every rank has all of them."""

    def __init__(self, shards: Shards, groups: list[dict[str, Any]]) -> None:
        self._shards, self._groups = shards, groups

    def check(
        self, groups: list[dict[str, Any]], states: dict[Any, dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """The groups' settings. Raises CheckpointError unless put() can take the states."""
        saved = [len(group.get("params", ())) for group in groups]
        own = [len(group["params"]) for group in self._groups]
        if saved != own:
            raise _C.CheckpointError(
                f"{_WHERE}: got groups of {saved} parameters, this optimizer has {own}"
            )
        steps: dict[str, Any] = {}
        for parameter, index in self._trained():
            state = states.get(index) or {}
            self._check_states(parameter, index, state)
            if state:
                steps[f"parameter {index}"] = state.get("step", 0)
        if not self._shards.external:
            check_one_step(steps)
        check_groups(groups, _WHERE, external=self._shards.external)
        settings = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        if not self._shards.external:
            return with_own_decay(settings, None, self._shards.settings.optimizer, _WHERE)
        common = {key: value for key, value in states.items() if not isinstance(key, int)}
        return [settings[0] | {COMMON_STATES: common}, *settings[1:]] if common else settings

    def _check_states(self, parameter: nn.Parameter, index: int, state: dict[str, Any]) -> None:
        layout = self._shards.layout
        name, shape = layout.names[parameter], layout.shapes[parameter]
        tensors = {key: value for key, value in state.items() if is_per_element(key, value, shape)}
        for key, value in tensors.items():
            if value.shape not in (shape, (shape.numel(),)):
                raise _C.CheckpointError(
                    f"{_WHERE}: {key} of parameter {index} ({name}): got shape "
                    f"{tuple(value.shape)}, expected {tuple(shape)}"
                )
        if not state or self._shards.external:
            return
        if tensors.keys() != set(_names_of(self._shards, parameter)):
            raise _C.CheckpointError(
                f"{_WHERE}: parameter {index} ({name}): got states {sorted(tensors)}, "
                f"expected {_names_of(self._shards, parameter)}"
            )
        whole_number(state.get("step", 0), f"step of parameter {index}", _WHERE)

    def put(self, states: dict[Any, dict[str, Any]]) -> None:
        """Takes them over; a parameter without any begins anew. Collective."""
        if self._shards.torch_states is not None:
            self._put_parts(states)
            return
        StateAccess(self._shards).set_all(
            (parameter, name, states[index][name] if states.get(index) else _zeros(shape))
            for parameter, index in self._trained()
            for shape in (self._shards.layout.shapes[parameter],)
            for name in _names_of(self._shards, parameter)
        )
        steps = [int(state["step"]) for state in states.values() if state and "step" in state]
        core = self._shards.core
        core.set_progress(max(steps, default=0), core.skipped_steps)

    def _put_parts(self, states: dict[Any, dict[str, Any]]) -> None:
        layout, kept = self._shards.layout, self._shards.torch_states
        for parameter, index in self._trained():
            identity, shape = layout.ids[parameter], layout.shapes[parameter]
            for interval in self._shards.core.state_intervals(identity):
                if interval.grad is None or kept is None:
                    continue
                part = slice(interval.begin, interval.begin + interval.numel)
                own = {
                    key: value.detach().flatten()[part].clone()
                    if is_per_element(key, value, shape)
                    else value
                    for key, value in (states.get(index) or {}).items()
                }
                kept.put(identity, interval.begin, own)

    def _trained(self) -> Iterator[tuple[nn.Parameter, int]]:
        layout = self._shards.layout
        for parameter, index in indices_of(self._groups).items():
            if parameter in layout.ids and layout.is_trainable(parameter):
                yield parameter, index


def _names_of(shards: Shards, parameter: nn.Parameter) -> list[str]:
    """The core's states with an element for each of the parameter's."""
    names = shards.core.state_names(shards.layout.ids[parameter])
    return sorted(name for name in names if not name.endswith("_scale"))


def _zeros(shape: torch.Size) -> torch.Tensor:
    return torch.zeros(()).expand(shape)


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
    expected = _names_of(shards, parameter)
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    shape = tuple(layout.shapes[parameter])
    if shapes != dict.fromkeys(expected, shape):
        raise _C.ConfigError(
            f"initialize: the optimizer's states of {layout.names[parameter]} have shapes "
            f"{shapes}, expected {dict.fromkeys(expected, shape)}: give it without states "
            "(optimizer.state.clear()), or those of the whole parameter"
        )
    return tensors
