"""All that this rank keeps of a model for its optimizer, as a dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zerorun import _C
from zerorun.hooks.parameter_memory import tensor_of
from zerorun.shards.shards import Shards

_MASTER = "master"
_STEP = "step"


class ShardStates:
    """The masters and optimizer states of this rank's intervals, by name and elements."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def get(self) -> dict[str, dict[str, Any]]:
        """Views of the engine's memory, as torch's state dicts are of the optimizer's."""
        return {key: self._of(interval) for key, interval in self._intervals()}

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
            core.set_progress(steps, core.skipped_steps)

    def _intervals(self) -> Iterator[tuple[str, _C.StateInterval]]:
        self._shards.writes.take()
        layout = self._shards.layout
        names = {index: layout.names[parameter] for parameter, index in layout.ids.items()}
        for interval in self._shards.core.state_intervals():
            if interval.grad is not None:
                end = interval.begin + interval.numel
                yield f"{names[interval.parameter]}[{interval.begin}:{end}]", interval

    def _of(self, interval: _C.StateInterval) -> dict[str, Any]:
        states: dict[str, Any] = dict(self._tensors(interval))
        if self._shards.torch_states is not None:
            return states | self._shards.torch_states.get(interval.parameter, interval.begin)
        return states | {_STEP: self._shards.core.step_count}

    def _tensors(self, interval: _C.StateInterval) -> dict[str, torch.Tensor]:
        names = self._shards.core.state_names(interval.parameter)
        states = {n: tensor_of(state) for n, state in zip(names, interval.states, strict=True)}
        if self._shards.core.param_dtype == "fp32" or interval.master is None:
            return states  # parameters are their own masters
        return states | {_MASTER: tensor_of(interval.master)}
