"""PyTorch's get_state_dict of an engine's model and optimizer: whole, or in parts."""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from zerorun import _C, torch_seam
from zerorun.checkpoints.full_state import full_parameters_of
from zerorun.hooks.parameter_memory import state_names_of
from zerorun.model.partition import partition_of
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
        self._on_host = info.cpu_offload
        self._mesh: Any = None
        # As PyTorch does: whole states on the host are rank 0's alone.
        self.is_kept = not (info.full_state_dict and info.cpu_offload and self._rank > 0)
        if not info.full_state_dict and self._world_size > 1:
            self._mesh = _mesh_of(shards)

    def of(self, values: torch.Tensor) -> torch.Tensor:
        whole = values.detach()
        if self._mesh is not None and whole.dim() > 0:
            return self._part_of(whole.contiguous())
        return whole.to("cpu" if self._on_host else whole.device, copy=True)

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


def _are_copied(shards: Shards | None, info: Any) -> bool:
    """True if values that are whole are copied all the same: steps must not change a state dict for
    which parameters were gathered, nor one at stage 3, whatever was whole there."""
    if shards is None or info.submodule_prefixes or shards.ranks.model_size > 1:
        return False
    return shards.stage == 3 or info.full_state_dict


def get_model(module: Any, original: Callable[..., Any], model: nn.Module, info: Any) -> Any:
    model = without_engine(model)
    shards = shards_of_any(model.parameters())
    check_undivided(shards, info.handle_model, "parameters")
    empty = any(not p.available for p in map(partition_of, model.parameters()) if p is not None)
    if not info.handle_model or not (empty or _are_copied(shards, info)):
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
    states: dict[str, Any] = {STEP: torch.tensor(float(shards.core.step_count))}
    for name, stored in stored_names_of(shards, parameter).items():
        values = access.get_full(parameter, stored)
        if form.is_kept and values is not None:
            states[name] = form.of(values)
    return states


def stored_names_of(shards: Shards, parameter: nn.Parameter) -> dict[str, str]:
    """Names in a state dict, with those of StateAccess; 16-bit parameters have masters besides."""
    names = state_names_of(shards.core, shards.layout.ids[parameter])
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
