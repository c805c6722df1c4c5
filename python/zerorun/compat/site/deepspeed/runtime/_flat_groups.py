"""The masters and states of a parameter group, each as one flat tensor."""

import json
from collections import Counter
from itertools import chain
from typing import Any

import torch
from torch import nn
from zerorun import _C
from zerorun.agreement import texts_of_all
from zerorun.optimizers.parameter_states import ParameterStates, ShardStates
from zerorun.shards.part_of_state import PartOfState
from zerorun.shards.state_access import StateAccess


class FlatMasters(PartOfState):
    """A copy of this rank's masters of one group: zerorun keeps them in several places."""

    group: "FlatGroup"


class FlatGroup:
    """The parameters of one group, in its order."""

    def __init__(self, shards: Any, parameters: list[nn.Parameter]) -> None:
        self._access = StateAccess(shards)
        self._parameters = [p for p in parameters if shards.layout.is_trainable(p)]
        self._values: torch.Tensor | None = None

    def masters(self) -> FlatMasters:
        """The tensor of this group, with the values of now; always the same one."""
        found = (self._access.get_local(p, "fp32_param") for p in self._parameters)
        parts = [part for part in found if part is not None]
        values = torch.cat(parts) if parts else torch.empty(0)
        if self._values is None:
            self._values = values
            self._shown = values.as_subclass(FlatMasters)
            self._shown.group = self
        else:
            self._values.copy_(values)
        return self._shown

    def states(self) -> dict[str, Any]:
        """The states of the group's parameters, flat."""
        kept = [self._access.get_kept(parameter) for parameter in self._parameters]
        first = kept[0] if kept else {}
        tensors = {name for name, value in first.items() if getattr(value, "ndim", 0) > 0}
        return {  # some rest on the host, where a part of them is offloaded
            name: torch.cat([state[name].flatten().to(value.device) for state in kept])
            if name in tensors
            else value
            for name, value in first.items()
        }


class FlatStates(ParameterStates):
    """The states by parameter, or by a group's flat masters."""

    def __getitem__(self, parameter: torch.Tensor) -> dict[str, Any]:
        if isinstance(parameter, FlatMasters):
            return parameter.group.states() if len(self) else {}
        return super().__getitem__(parameter)


# --- a state dict that has them ---

_PARTS = "parts"
Sizes = dict[str, list[Any]]  # by state: how many elements, and their dtype


def _numel(part: str) -> int:
    """The elements of a part, by its name in ShardStates."""
    begin, end = part.rpartition("[")[2].removesuffix("]").split(":")
    return int(end) - int(begin)


class FlatStateDict:
    """The states of an optimizer by group, as DeepSpeed's inner optimizer has them from stage 1 on:
    each one flat tensor, as long on all ranks, with zeros after this rank's elements, since
    programs gather them. ``parts`` has what else a load needs. To make one is collective.
    """

    def __init__(self, shards: Any) -> None:
        self._shards = shards
        self._longest: list[Sizes] = []
        if not shards.external:  # torch optimizers make their states in a step
            self.agree()

    @property
    def is_agreed(self) -> bool:
        return bool(self._longest)

    def agree(self) -> None:
        """From now on every rank has the states that some rank has now, as long as there.
        Collective."""
        own = json.dumps(list(map(self._sizes, self._groups())))
        ranks = map(json.loads, texts_of_all(own, self._shards.communicator))
        self._longest = [
            {name: max(r[name] for r in found if name in r) for name in sorted({*chain(*found)})}
            for found in zip(*ranks, strict=True)
        ]

    def get(self) -> dict[str, Any]:
        """``state`` and ``parts``."""
        groups = self._groups()
        steps = {} if self._shards.external else {"step": self._shards.core.step_count}
        longest = self._longest or [{} for _ in groups]
        states = {
            index: self._joined(group, self._sizes(group) | longest[index]) | steps
            for index, group in enumerate(groups)
        }
        return {"state": states, _PARTS: list(map(self._rest, groups))}

    def _rest(self, group: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {
            key: {name: None if self._is_flat(key, v) else v for name, v in part.items()}
            for key, part in group.items()
        }

    def split(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The same with the states as ShardStates has them; others than get() gave as they are."""
        if _PARTS not in state_dict:
            return state_dict
        groups, states = self._groups(), list(state_dict["state"].values())
        if len(states) != len(groups):
            raise _C.CheckpointError(
                f"load_state_dict: got states of {len(states)} groups, this optimizer has "
                f"{len(groups)}"
            )
        found: dict[str, dict[str, Any]] = {}
        for group, parts, flats in zip(groups, state_dict[_PARTS], states, strict=True):
            begins: Counter[str] = Counter()
            for key, rest in parts.items():
                found[key] = dict(rest)
                for name in [n for n, value in rest.items() if value is None]:
                    own = group.get(key, {}).get(name)
                    numel = _numel(key) if own is None else own.numel()
                    found[key][name] = flats[name][begins[name] : begins[name] + numel]
                    begins[name] += numel
        return state_dict | {"state": found}

    def _groups(self) -> list[dict[str, dict[str, Any]]]:
        """This rank's parts by group, each with its states by name."""
        layout = self._shards.layout
        group_of = {layout.names[p]: index for p, index in layout.group_of.items()}
        groups: list[dict[str, Any]] = [{} for _ in range(layout.group_count)]
        for key, states in ShardStates(self._shards).get().items():
            groups[group_of[key.rpartition("[")[0]]][key] = states
        return groups

    def _sizes(self, group: dict[str, dict[str, Any]]) -> Sizes:
        numels: Counter[str] = Counter()
        dtypes: dict[str, str] = {}
        for key, part in group.items():
            for name, value in part.items():
                if self._is_flat(key, value):
                    numels[name] += value.numel()
                    dtypes[name] = str(value.dtype).removeprefix("torch.")
        return {name: [numels[name], dtype] for name, dtype in dtypes.items()}

    def _joined(self, group: dict[str, dict[str, Any]], sizes: Sizes) -> dict[str, torch.Tensor]:
        joined = {}
        for name in sorted(sizes):  # the order in which programs gather them
            found = (p[name] for k, p in group.items() if name in p and self._is_flat(k, p[name]))
            parts = list(found)
            device = parts[0].device if parts else self._shards.device  # some rest on the host
            numel, dtype = sizes[name]
            joined[name] = torch.zeros(numel, dtype=getattr(torch, dtype), device=device)
            begin = 0
            for part in parts:
                joined[name][begin : begin + part.numel()].copy_(part)
                begin += part.numel()
        return joined

    def _is_flat(self, key: str, value: Any) -> bool:
        """True for a state with an element for each of the parameter's, or codes of the core's."""
        is_row = isinstance(value, torch.Tensor) and value.dim() == 1
        return is_row and (not self._shards.external or value.numel() == _numel(key))
