"""PyTorch's get_state_dict and set_state_dict of an engine's model and optimizer."""

import importlib
import json
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from zerorun import _C, torch_seam
from zerorun.agreement import all_or_none, share, text_of_rank_zero
from zerorun.checkpoints.streaming import full_parameters_of
from zerorun.hooks import parameter_memory as memory
from zerorun.model.partition import Partition, partition_of
from zerorun.optimizers.optimizer import load_group_settings
from zerorun.optimizers.saved_values import (
    check_groups,
    copy_of_now,
    whole_number,
    with_own_decay,
)
from zerorun.shards.shards import Shards, shards_of
from zerorun.shards.state_access import StateAccess

STATE, GROUPS, PARAMS = "state", "param_groups", "params"
MASTER, STEP = "master", "step"


def shards_of_any(parameters: Iterable[nn.Parameter]) -> Shards | None:
    return next((s for p in parameters if (s := shards_of(p)) is not None), None)


def without_engine(model: nn.Module) -> nn.Module:
    """The model itself, for programs that give the engine."""
    is_engine = isinstance(getattr(model, "_shards", None), Shards)
    return getattr(model, "module") if is_engine else model  # noqa: B009 - of any module


def names_of(module: Any, model: nn.Module) -> dict[str, nn.Parameter]:
    """The model's parameters by the names that PyTorch gives them, without those of wrappers."""
    return {plain_name(module, model, name): p for name, p in model.named_parameters()}


def plain_name(module: Any, model: nn.Module, name: str) -> str:
    return next(iter(module._get_fqns(model, name)))


class _Form:
    """Turns a whole tensor into a copy of it, this rank's part of one, or nothing."""

    def __init__(self, shards: Shards, info: Any) -> None:
        """Raises ConfigError for parts where PyTorch has no process group."""
        self._rank, self._world_size = shards.communicator.rank, shards.communicator.world_size
        self._shards, self._is_full = shards, info.full_state_dict
        self._on_host = info.cpu_offload
        self._mesh: Any = None
        # As PyTorch does: whole states on the host are rank 0's alone.
        self.is_kept = not (info.full_state_dict and info.cpu_offload and self._rank > 0)
        if not info.full_state_dict and self._world_size > 1:
            self._mesh = _mesh_of(shards)

    def of(self, values: torch.Tensor) -> torch.Tensor:
        whole = values.detach()
        place = "cpu" if self._on_host else whole.device
        in_parts = self._mesh is not None and whole.dim() > 0
        made = self._part_of(whole.contiguous()) if in_parts else whole.to(place, copy=True)
        return made if self._is_full or self._on_host else copy_of_now(made, self._shards)

    def _part_of(self, whole: torch.Tensor) -> torch.Tensor:
        tensor: Any = importlib.import_module(torch_seam.DTENSORS)
        parts = whole.chunk(self._world_size)
        own = parts[self._rank] if self._rank < len(parts) else whole[:0]
        made = tensor.DTensor.from_local(
            own.clone(),
            self._mesh,
            [tensor.Shard(0)],
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        )
        return made.cpu() if self._on_host else made


def _mesh_of(shards: Shards) -> Any:
    distributed = torch.distributed
    world_size = shards.communicator.world_size
    if not distributed.is_initialized() or distributed.get_world_size() != world_size:
        raise _C.ConfigError(
            "a sharded state dict is made of PyTorch's DTensors, which need a process group of all "
            f"{world_size} ranks: call torch.distributed.init_process_group() first, or ask for "
            "StateDictOptions(full_state_dict=True); engine.save_checkpoint() saves without either"
        )
    mesh: Any = importlib.import_module("torch.distributed.device_mesh")
    return mesh.init_device_mesh(shards.device.type, (world_size,))


def check_undivided(shards: Shards | None, asked: bool, what: str) -> None:
    """Raises ConfigError where names do not tell what ranks hold: parts of a model, and experts."""
    if shards is None or not asked:
        return
    ranks = shards.ranks
    dtensors = what == "parameters" and shards.stage < 3
    dtensors = dtensors and ranks.mesh is not None and ranks.mesh.of_dtensors
    if ranks.experts or (ranks.model_size > 1 and not dtensors):
        raise _C.ConfigError(
            f"a state dict of PyTorch's for {what} of a model that is divided among ranks, which "
            "hold different ones under one name: engine.save_checkpoint() saves all of them"
        )


def get_model(module: Any, original: Callable[..., Any], model: nn.Module, info: Any) -> Any:
    model = without_engine(model)
    shards = shards_of_any(model.parameters())
    check_undivided(shards, info.handle_model, "parameters")
    empty = any(not p.available for p in map(partition_of, model.parameters()) if p is not None)
    # Also values that are whole, so that steps do not change a state dict for which parameters were
    # gathered, nor one at stage 3.
    part = shards is None or info.submodule_prefixes or shards.ranks.model_size > 1
    copied = not part and (info.full_state_dict or (shards is not None and shards.stage == 3))
    if not info.handle_model or not (empty or copied):
        return original(model, info)
    if shards is None or info.submodule_prefixes:
        raise _C.ConfigError(
            "the model's parameters are partitioned: get their values within "
            "zerorun.zero.GatheredParameters(model.parameters())"
        )
    shards.release_all()
    form = _Form(shards, info)
    made: dict[nn.Parameter, torch.Tensor] = {}
    for _, parameter in full_parameters_of(model):
        if form.is_kept and (parameter.requires_grad or not info.ignore_frozen_params):
            made[parameter] = form.of(parameter)
    if not form.is_kept:
        return {}
    state: dict[str, Any] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, nn.Parameter):
            if value in made:
                state[plain_name(module, model, name)] = made[value]
        else:
            is_tensor = isinstance(value, torch.Tensor)
            state[plain_name(module, model, name)] = form.of(value) if is_tensor else value
    return state


def get_optimizer(
    module: Any, original: Callable[..., Any], model: nn.Module, optimizers: Any, info: Any
) -> Any:
    shards = shards_of_optimizers(optimizers)
    check_undivided(shards, info.handle_optim, "the optimizer")
    if not info.handle_optim or shards is None:
        return original(model, optimizers, info)
    form, names = _Form(shards, info), names_of(module, without_engine(model))
    name_of = {parameter: name for name, parameter in names.items()}
    states = {}
    for name, parameter in names.items():
        if parameter in shards.layout.ids and shards.layout.is_trainable(parameter):
            states[name] = _states_of(shards, parameter, form)
    if not form.is_kept:
        return {}
    groups = []
    for group in optimizers[0].param_groups:
        kept = {key: value for key, value in group.items() if key != PARAMS}
        groups.append(kept | {PARAMS: [name_of[p] for p in group[PARAMS] if p in name_of]})
    state = {STATE: states, GROUPS: groups}
    return module._flatten_optim_state_dict(state) if info.flatten_optimizer_state_dict else state


def _states_of(shards: Shards, parameter: nn.Parameter, form: _Form) -> dict[str, Any]:
    """Collective."""
    access = StateAccess(shards)
    states: dict[str, Any] = {STEP: _fp32(shards.core.step_count)}
    for name, stored in stored_names_of(shards, parameter).items():
        values = access.get_full(parameter, stored)
        if form.is_kept and values is not None:
            states[name] = form.of(values)
    return states


def _fp32(number: float) -> torch.Tensor:
    return torch.tensor(float(number), dtype=torch.float32, device="cpu")


def stored_names_of(shards: Shards, parameter: nn.Parameter) -> dict[str, str]:
    """Names in a state dict, with those of StateAccess; 16-bit parameters have masters besides."""
    names = memory.state_names_of(shards.core, shards.layout.ids[parameter])
    found = dict(zip(names, names, strict=True))
    has_masters = (
        shards.core.param_dtype != "fp32" and not shards.settings.precision.master_is_param
    )
    return found | ({MASTER: "fp32_param"} if has_masters else {})


def shards_of_optimizers(optimizers: Iterable[torch.optim.Optimizer]) -> Shards | None:
    """Raises ConfigError for what cannot be taken apart."""
    given = list(optimizers)
    shards = shards_of_any(p for o in given for group in o.param_groups for p in group[PARAMS])
    if shards is None:
        return None
    if len(given) > 1:
        raise _C.ConfigError("get_state_dict: an engine has one optimizer, got several")
    if shards.external:
        raise _C.ConfigError(
            "get_state_dict: this optimizer is torch's, and its states are those of each rank's "
            "shards: optimizer.state_dict() has this rank's, engine.save_checkpoint() saves all"
        )
    return shards


# --- set_state_dict, after all checks ---


class _Given:
    """The tensors of a state dict, whole or in parts, by name; rank 0's alone if it broadcasts."""

    def __init__(self, values: dict[str, Any], shards: Shards, info: Any) -> None:
        """Collective. Raises CheckpointError unless the ranks have the same."""
        self._values = values
        self._ranks = shards.communicator
        self._broadcast = info.broadcast_from_rank0
        kinds = {  # shape and dtype; of what is no tensor, its type
            name: (list(value.shape), str(value.dtype).removeprefix("torch."))
            if isinstance(value, torch.Tensor)
            else ([], type(value).__name__)
            for name, value in values.items()
        }
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
        memory.masters_from_parameters(shards.core, shards.layout, only_changed=True)
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
        None if i.master is None else memory.tensor_of(i.master).clone()
        for i in core.state_intervals(index)
    ]
    partition.store(values.contiguous())
    for interval, precise in zip(core.state_intervals(index), masters, strict=True):
        if precise is not None:
            memory.keep_precise(interval, precise)
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
        f"{name}.{key}": value if isinstance(value, torch.Tensor) else _fp32(value)
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
