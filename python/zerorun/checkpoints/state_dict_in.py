"""PyTorch's set_state_dict on an engine's model and optimizer: after all checks."""

import importlib
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import all_or_none, share, text_of_rank_zero
from zerorun.checkpoints.full_state import full_parameters_of
from zerorun.checkpoints.state_dict_out import (
    GROUPS,
    MASTER,
    PARAMS,
    STATE,
    STEP,
    check_undivided,
    names_of,
    plain_name,
    shards_of_any,
    shards_of_optimizers,
    stored_names_of,
    without_engine,
)
from zerorun.hooks.parameter_memory import keep_precise, masters_from_parameters, tensor_of
from zerorun.model.partition import Partition, partition_of
from zerorun.optimizers.optimizer import load_group_settings
from zerorun.optimizers.saved_values import check_groups, whole_number, with_own_decay
from zerorun.shards.shards import Shards
from zerorun.shards.state_access import StateAccess


class _Given:
    """The tensors of a state dict, whole or in parts, by name; rank 0's alone if it broadcasts."""

    def __init__(self, values: dict[str, Any], shards: Shards, info: Any) -> None:
        """Collective. Raises CheckpointError unless the ranks have the same."""
        self._values = values
        self._ranks = shards.communicator
        self._broadcast = info.broadcast_from_rank0
        kinds = {name: _kind_of(value) for name, value in values.items()}
        text = json.dumps(kinds, sort_keys=True)
        first = text_of_rank_zero(text, self._ranks, "names of the state dict")
        with all_or_none(self._ranks, "set_state_dict"):
            if not self._broadcast and text != first:
                raise _C.CheckpointError(
                    "this rank's state dict has other tensors than rank 0's: give it to every "
                    "rank, or StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)"
                )
        self._kinds: dict[str, tuple[list[int], str]] = json.loads(first)
        self.names = self._kinds.keys()

    def shape(self, name: str) -> torch.Size | None:
        """None where there is no such tensor."""
        return torch.Size(self._kinds[name][0]) if name in self._kinds else None

    def whole(self, name: str, device: torch.device) -> torch.Tensor:
        """Collective."""
        if self._broadcast:
            shape, dtype = self._kinds[name]
            values = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
            if self._ranks.rank == 0:
                values.copy_(self._values[name])
            share(values, self._ranks, name)
            return values
        value = self._values[name].to(device)
        return value.full_tensor() if hasattr(value, "full_tensor") else value


def _kind_of(value: Any) -> tuple[list[int], str]:
    """Shape and dtype; of what is no tensor, its type."""
    if not isinstance(value, torch.Tensor):
        return [], type(value).__name__
    return list(value.shape), str(value.dtype).removeprefix("torch.")


def load_model(
    module: Any, original: Callable[..., Any], model: nn.Module, state: dict[str, Any], info: Any
) -> Any:
    model = without_engine(model)
    shards = shards_of_any(model.parameters())
    check_undivided(shards, info.handle_model, "parameters")
    if shards is None or not info.handle_model or (not state and not info.broadcast_from_rank0):
        return original(model, state, info)
    if shards.stage < 3:
        result = original(model, state, info)
        # The optimizer's part of the same state may have brought masters before.
        masters_from_parameters(shards.core, shards.layout, only_changed=True)
        shards.writes.forget()
        return result
    shards.release_all()
    given = _Given(state, shards, info)
    own = {plain_name(module, model, n): v for n, v in model.state_dict(keep_vars=True).items()}
    missing, unexpected = sorted(own.keys() - given.names), sorted(given.names - own.keys())
    with all_or_none(shards.communicator, "set_model_state_dict"):
        _check(own, given, [*missing, *unexpected] if info.strict else [])
    with torch.no_grad():
        _write(shards, model, own, given)
        rest = {n: state[n] for n, v in own.items() if n in state and not torch.is_tensor(v)}
        if rest:  # what get_extra_state gave
            model.load_state_dict(rest, strict=False)
    kind: Any = importlib.import_module("torch.nn.modules.module")._IncompatibleKeys
    return kind(missing, unexpected)


def _check(own: dict[str, Any], given: _Given, differing: list[str]) -> None:
    problems = [f"{name} is in one of the two only" for name in differing]
    for name in own.keys() & given.names:
        shape = getattr(partition_of(own[name]), "shape", getattr(own[name], "shape", None))
        if shape is not None and given.shape(name) != shape:
            found = tuple(given.shape(name) or ())
            problems.append(f"{name} has shape {tuple(shape)}, in the state dict {found}")
    if problems:
        raise _C.CheckpointError(
            "set_model_state_dict: does not fit this model:" + "\n  ".join(["", *problems[:10]])
        )


def _write(shards: Shards, model: nn.Module, own: dict[str, Any], given: _Given) -> None:
    name_of = {id(value): name for name, value in own.items() if name in given.names}
    for _, parameter in full_parameters_of(model):
        if id(parameter) not in name_of:
            continue
        values = given.whole(name_of[id(parameter)], parameter.device)
        partition = partition_of(parameter)
        if partition is None:
            parameter.copy_(values)
        else:
            _store(shards, partition, values)
    for name, value in own.items():
        is_buffer = isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)
        if is_buffer and name in given.names:
            value.copy_(given.whole(name, value.device))
    shards.core.refresh_from_masters()


def _store(shards: Shards, partition: Partition, values: torch.Tensor) -> None:
    """16-bit values leave masters that round to them as they are: set_state_dict has set those from
    the optimizer's states before."""
    core, index = shards.core, shards.layout.ids[partition.parameter]
    if values.dtype == torch.float32:
        partition.store(values.contiguous())
        return
    masters = [
        None if i.master is None else tensor_of(i.master).clone()
        for i in core.state_intervals(index)
    ]
    partition.store(values.contiguous())
    for interval, precise in zip(core.state_intervals(index), masters, strict=True):
        if precise is not None:
            keep_precise(interval, precise)
    core.accept_changes()


def load_optimizer(
    module: Any,
    original: Callable[..., Any],
    model: nn.Module,
    optimizers: Any,
    state: dict[str, Any],
    info: Any,
) -> Any:
    shards = shards_of_optimizers(optimizers)
    check_undivided(shards, info.handle_optim, "the optimizer")
    if not info.handle_optim or shards is None:
        return original(model, optimizers, state, info)
    names = names_of(module, without_engine(model))
    nested = state if STATE in state else _nested(state, optimizers[0], names)
    values = {
        f"{name}.{key}": value if isinstance(value, torch.Tensor) else torch.tensor(float(value))
        for name, states in nested.get(STATE, {}).items()
        for key, value in states.items()
    }
    given = _Given(values, shards, info)
    wanted = [
        (parameter, f"{name}.{key}", stored)
        for name, parameter in names.items()
        if parameter in shards.layout.ids and shards.layout.is_trainable(parameter)
        for key, stored in stored_names_of(shards, parameter).items()
        # Other programs have no masters: the model's values are theirs.
        if key != MASTER or f"{name}.{key}" in given.names
    ]
    where = "set_optimizer_state_dict"
    with all_or_none(shards.communicator, where):
        for parameter, name, _ in wanted:
            shape, found = shards.layout.shapes[parameter], given.shape(name)
            if found != shape:
                got = "nothing" if found is None else tuple(found)
                raise _C.CheckpointError(f"{where}: {name}: got {got}, expected {tuple(shape)}")
    settings = [{k: v for k, v in g.items() if k != PARAMS} for g in nested.get(GROUPS, ())]
    if info.broadcast_from_rank0:
        text = json.dumps(settings, default=float)
        settings = json.loads(text_of_rank_zero(text, shards.communicator, "parameter groups"))
    device = shards.device
    counts = {n: given.whole(n, device) for n in sorted(given.names) if n.endswith(f".{STEP}")}
    with all_or_none(shards.communicator, where):
        check_groups(settings, where, external=shards.external)
        settings = with_own_decay(settings, None, shards.settings.optimizer, where)
        steps = [whole_number(value, name, where) for name, value in counts.items()]
    load_group_settings(optimizers[0].param_groups, settings)
    StateAccess(shards).set_all(
        (p, stored, given.whole(name, device)) for p, name, stored in wanted
    )
    shards.core.set_progress(max(steps, default=0), shards.core.skipped_steps)
    return None


def _nested(
    flat: dict[str, Any], optimizer: torch.optim.Optimizer, names: dict[str, nn.Parameter]
) -> dict[str, Any]:
    """A state dict of StateDictOptions(flatten_optimizer_state_dict=True)."""

    name_of = {parameter: name for name, parameter in names.items()}
    states: dict[str, dict[str, Any]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        path, _, last = key.rpartition(".")
        kind, _, name = path.partition(".")
        (states if kind == STATE else settings).setdefault(name, {})[last] = value
    members = [[name_of[p] for p in g[PARAMS] if p in name_of] for g in optimizer.param_groups]
    groups = [settings.get(each[0], {}) if each else {} for each in members]
    return {STATE: states, GROUPS: groups}
