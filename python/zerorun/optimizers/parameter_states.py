"""Optimizer states that lie in an engine's memory, as programs see and load them."""

import collections
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import all_or_none, reduced
from zerorun.hooks.parameter_memory import state_names_of, states_of, tensor_of
from zerorun.optimizers.saved_values import (
    COMMON_STATES,
    check_groups,
    whole_number,
    with_own_decay,
)
from zerorun.shards.shards import Shards
from zerorun.shards.state_access import StateAccess
from zerorun.shards.torch_optimizer import is_per_element


class NoStates(collections.defaultdict[Any, Any]):
    """What copies and pickles of an optimizer have of an engine's states."""


class ParameterStates(MutableMapping[Any, Any]):
    """By parameter, what this rank keeps of its states: ``step``, ``exp_avg``, ...

    In the parameter's shape where the rank keeps all of it, else the rank's elements, flat. The
    values are views of the engine's memory where they lie there in one piece and in fp32. Nothing
    is there before the first step, as in torch. States of no parameter are there by their own keys.
    Reading is not collective.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def __getitem__(self, parameter: Any) -> Any:
        if not isinstance(parameter, torch.Tensor):
            return self._common()[parameter]
        if not isinstance(parameter, nn.Parameter) or parameter not in self._parameters():
            return {}
        return StateAccess(self._shards).get_kept(parameter)

    def __setitem__(self, parameter: Any, states: Any) -> None:
        """Accepts what is there already, from programs that move states to a device."""
        if not isinstance(parameter, torch.Tensor) and parameter in self._common():
            return
        kept = self[parameter]
        same = kept.keys() == states.keys() and all(
            torch.equal(value, given.to(value.device))
            for value, given in ((kept[key], states[key]) for key in kept)
            if isinstance(value, torch.Tensor) and isinstance(given, torch.Tensor)
        )
        if not same:
            raise _C.ConfigError(
                "optimizer.state: the states are in the engine's memory and are not replaced here: "
                "zerorun.zero.safe_set_full_optimizer_state sets one, and load_state_dict or "
                "load_checkpoint all"
            )

    def __delitem__(self, parameter: Any) -> None:
        raise _C.ConfigError(
            "optimizer.state: the states are in the engine's memory as long as the engine is; "
            "optimizer.state = {} on every rank lets all begin anew"
        )

    def __iter__(self) -> Iterator[Any]:
        return iter([*self._parameters(), *self._common()])

    def __len__(self) -> int:
        return len(self._parameters()) + len(self._common())

    def __reduce__(self) -> tuple[Any, ...]:
        return NoStates, (dict,)

    def _common(self) -> dict[Any, Any]:
        states = self._shards.torch_states
        return {} if states is None else states.common()

    def _parameters(self) -> dict[nn.Parameter, int]:
        """Those with states, and their groups."""
        core, states = self._shards.core, self._shards.torch_states
        if core.closed:
            return {}
        started = core.step_count > 0 if states is None else states.has_started
        return self._shards.layout.group_of if started else {}


# --- whole ones, of a torch optimizer ---

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
        # Of which a rule of the core's has one count.
        if not self._shards.external and len({int(step) for step in steps.values()}) > 1:
            least, most = (of(steps, key=steps.__getitem__) for of in (min, max))
            raise _C.CheckpointError(
                f"load_state_dict: {least} has made {int(steps[least])} steps and {most} "
                f"{int(steps[most])}, but this engine's optimizer counts them for all together: "
                "load states of as many steps, or use an optimizer that the core has no rule for"
            )
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
        expected = sorted(state_names_of(self._shards.core, layout.ids[parameter]))
        if sorted(tensors) != expected:
            raise _C.CheckpointError(
                f"{_WHERE}: parameter {index} ({name}): got states {sorted(tensors)}, "
                f"expected {expected}"
            )
        whole_number(state.get("step", 0), f"step of parameter {index}", _WHERE)

    def put(self, states: dict[Any, dict[str, Any]]) -> None:
        """Takes them over; a parameter without any begins anew. Collective."""
        core, layout, kept = self._shards.core, self._shards.layout, self._shards.torch_states
        if kept is not None:
            for parameter, index in self._trained():
                for interval in core.state_intervals(layout.ids[parameter]):
                    if interval.grad is not None:
                        whole = states.get(index) or {}
                        kept.put_part(interval, whole, layout.shapes[parameter])
            return
        StateAccess(self._shards).set_all(
            (
                parameter,
                name,
                states[index][name]
                if states.get(index)
                else torch.zeros((), device="cpu").expand(shape),
            )
            for parameter, index in self._trained()
            for shape in (layout.shapes[parameter],)
            for name in state_names_of(core, layout.ids[parameter])
        )
        steps = [int(state["step"]) for state in states.values() if state and "step" in state]
        core.set_progress(max(steps, default=0), core.skipped_steps)

    def _trained(self) -> Iterator[tuple[nn.Parameter, int]]:
        layout = self._shards.layout
        for parameter, index in indices_of(self._groups).items():
            if parameter in layout.ids and layout.is_trainable(parameter):
                yield parameter, index


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
    count = torch.tensor([len(given), -len(given)], device="cpu")
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
    expected = state_names_of(shards.core, layout.ids[parameter])
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    shape = tuple(layout.shapes[parameter])
    if shapes != dict.fromkeys(expected, shape):
        raise _C.ConfigError(
            f"initialize: the optimizer's states of {layout.names[parameter]} have shapes "
            f"{shapes}, expected {dict.fromkeys(expected, shape)}: give it without states "
            "(optimizer.state.clear()), or those of the whole parameter"
        )
    return tensors


# --- all that this rank keeps, as a dictionary ---

_STEP = "step"


class ShardStates:
    """The masters and optimizer states of this rank's intervals, by name and elements."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def get(self) -> dict[str, dict[str, Any]]:
        """Views of the engine's memory, as torch's state dicts are of the optimizer's."""
        found: dict[str, dict[str, Any]] = {}
        kept = self._shards.torch_states
        for key, interval in self._intervals():
            more = {_STEP: self._shards.core.step_count}
            own = more if kept is None else kept.get(interval.parameter, interval.begin)
            found[key] = self._tensors(interval) | own
        return found

    def check(self, states: dict[str, dict[str, Any]]) -> None:
        """Raises CheckpointError unless put() can take them."""
        own = dict(self._intervals())
        if own.keys() != states.keys():
            differing = sorted(own.keys() ^ states.keys())[:1]
            raise _C.CheckpointError(
                f"load_state_dict: got {len(states)} parts of parameters, expected {len(own)}: "
                f"{differing[0]} is in one of the two only. What state_dict() gave fits the same "
                "rank of as many; save_checkpoint saves for any number"
            )
        if self._shards.torch_states is not None:
            return
        for key, interval in own.items():
            expected = {name: value.shape for name, value in self._tensors(interval).items()}
            found = {
                name: value.shape
                for name, value in states[key].items()
                if isinstance(value, torch.Tensor)
            }
            if found != expected:
                raise _C.CheckpointError(
                    f"load_state_dict: {key}: got {found}, expected {expected}"
                )

    def put(self, states: dict[str, dict[str, Any]]) -> None:
        """Takes over what get() gave, which check() has seen. Collective."""
        core, steps = self._shards.core, 0
        for key, interval in self._intervals():
            given = dict(states[key])
            for name, target in self._tensors(interval).items():
                target.copy_(given.pop(name))
            if self._shards.torch_states is not None:
                self._shards.torch_states.put(interval.parameter, interval.begin, given)
            else:
                steps = max(steps, given[_STEP])
        core.refresh_from_masters()
        if self._shards.torch_states is None:
            # 0 on a rank that stores nothing.
            made = reduced(steps, self._shards.communicator, "max", "steps of load_state_dict")
            core.set_progress(made, core.skipped_steps)

    def _intervals(self) -> Iterator[tuple[str, _C.StateInterval]]:
        self._shards.writes.take()
        layout = self._shards.layout
        names = {index: layout.names[parameter] for parameter, index in layout.ids.items()}
        for interval in self._shards.core.state_intervals():
            if interval.grad is not None:
                end = interval.begin + interval.numel
                yield f"{names[interval.parameter]}[{interval.begin}:{end}]", interval

    def _tensors(self, interval: _C.StateInterval) -> dict[str, torch.Tensor]:
        states = states_of(self._shards.core, interval)
        if self._shards.core.param_dtype == "fp32" or interval.master is None:
            return states  # parameters are their own masters
        return states | {"master": tensor_of(interval.master)}
