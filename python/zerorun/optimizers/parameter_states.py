"""The ``state`` of an optimizer whose states lie in an engine's memory."""

from __future__ import annotations

import collections
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.shards.shards import Shards
from zerorun.shards.state_access import StateAccess


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
            torch.equal(value, given.to(value.device)) if _are_tensors(value, given) else True
            for value, given in ((kept[key], states[key]) for key in kept)
        )
        if not same:
            raise _C.ConfigError(
                "optimizer.state: the states are in the engine's memory and are not replaced here: "
                "zerorun.zero.safe_set_full_optimizer_state sets one, and load_state_dict or "
                "load_checkpoint all"
            )

    def __delitem__(self, parameter: Any) -> None:
        raise _C.ConfigError(
            "optimizer.state: the states are in the engine's memory as long as the engine is"
        )

    def __iter__(self) -> Iterator[Any]:
        return iter([*self._parameters(), *self._common()])

    def __len__(self) -> int:
        return len(self._parameters()) + len(self._common())

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles of an optimizer have none."""
        return collections.defaultdict, (dict,)

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


def _are_tensors(*values: Any) -> bool:
    return all(isinstance(value, torch.Tensor) for value in values)
