"""States of whole parameters, as a torch optimizer's state_dict() has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.optimizers.saved_values import (
    COMMON_STATES,
    check_groups,
    check_one_step,
    whole_number,
    with_own_decay,
)
from zerorun.shards.shards import Shards
from zerorun.shards.state_access import StateAccess

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
        tensors = {key: value for key, value in state.items() if _is_of_elements(key, value, shape)}
        for key, value in tensors.items():
            if value.shape not in (shape, (shape.numel(),)):
                raise _C.CheckpointError(
                    f"{_WHERE}: {key} of parameter {index} ({name}): got shape "
                    f"{tuple(value.shape)}, expected {tuple(shape)}"
                )
        if not state or self._shards.external:
            return
        if tensors.keys() != set(self._names_of(parameter)):
            raise _C.CheckpointError(
                f"{_WHERE}: parameter {index} ({name}): got states {sorted(tensors)}, "
                f"expected {self._names_of(parameter)}"
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
            for name in self._names_of(parameter)
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
                    if _is_of_elements(key, value, shape)
                    else value
                    for key, value in (states.get(index) or {}).items()
                }
                kept.put(identity, interval.begin, own)

    def _trained(self) -> Iterator[tuple[nn.Parameter, int]]:
        layout = self._shards.layout
        for parameter, index in indices_of(self._groups).items():
            if parameter in layout.ids and layout.is_trainable(parameter):
                yield parameter, index

    def _names_of(self, parameter: nn.Parameter) -> list[str]:
        """Those with an element for each of the parameter's."""
        names = self._shards.core.state_names(self._shards.layout.ids[parameter])
        return sorted(name for name in names if not name.endswith("_scale"))


def _is_of_elements(key: str, value: Any, shape: torch.Size) -> bool:
    """False for counts of steps and the like."""
    if key == "step" or not isinstance(value, torch.Tensor):
        return False
    return value.dim() > 0 or len(shape) == 0


def _zeros(shape: torch.Size) -> torch.Tensor:
    return torch.zeros(()).expand(shape)
