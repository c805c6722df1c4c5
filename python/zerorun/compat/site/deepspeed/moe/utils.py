"""Which parameters are experts', and optimizer groups that keep them apart."""

from collections.abc import Iterable
from typing import Any

import torch
import zerorun
from torch import nn
from zerorun.experts import is_expert as is_moe_param

from deepspeed.moe.layer import MoE


def has_moe_layers(m: nn.Module) -> tuple[bool, int]:
    """True if a layer is a MoE, and the experts of the first one."""
    found = next((module for module in m.modules() if isinstance(module, MoE)), None)
    return found is not None, 0 if found is None else found.num_experts


def split_params_into_shared_and_expert_params(
    params: Iterable[nn.Parameter],
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    given = list(params)
    return [p for p in given if not is_moe_param(p)], [p for p in given if is_moe_param(p)]


def split_params_grads_into_shared_and_expert_params(
    group: Iterable[nn.Parameter],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Gradients of the parameters that have one."""
    shared, experts = split_params_into_shared_and_expert_params(group)
    return tuple([p.grad for p in part if p.grad is not None] for part in (shared, experts))


def split_params_into_different_moe_groups_for_optimizer(
    param_groups: Any, max_group_size: float | None = 178956971
) -> list[dict[str, Any]]:
    """The groups without experts' parameters, followed by groups of these alone: one for each
    group and `group_name`, or several of at most `max_group_size` elements."""
    given = [param_groups] if isinstance(param_groups, dict) else param_groups
    if not isinstance(given, list | tuple) or not all(isinstance(each, dict) for each in given):
        raise ValueError(f"got {type(param_groups)}, expected parameter groups: dictionaries")
    groups, own = list(given), []
    for group in groups:
        shared, experts = split_params_into_shared_and_expert_params(group["params"])
        group["params"] = shared
        for name in sorted({p.group_name for p in experts}):
            members = [p for p in experts if p.group_name == name]
            for part in _parts(members, max_group_size):
                own.append({**group, "name": name, "moe": True, "params": part})
    return groups + own


def _parts(parameters: list[nn.Parameter], most: float | None) -> list[list[nn.Parameter]]:
    parts: list[list[nn.Parameter]] = [[]]
    size = 0
    for parameter in parameters:
        if most is not None and parts[-1] and size + parameter.numel() > most:
            parts.append([])
            size = 0
        parts[-1].append(parameter)
        size += parameter.numel()
    return parts


def is_moe_param_group(param_group: dict[str, Any]) -> bool:
    return bool(param_group.get("moe", False))


def configure_moe_param_groups(model_parameters: list[Any]) -> list[dict[str, Any]]:
    """Groups that keep experts apart, of parameters or of groups where none does so yet."""
    if not isinstance(model_parameters, list):
        raise zerorun.ConfigError(f"got {type(model_parameters)}, expected a list")
    wrong = [each for each in model_parameters if not isinstance(each, torch.Tensor | dict)]
    if wrong:
        raise TypeError(f"param argument: got {type(wrong[0])}, expected tensors or dictionaries")
    if not model_parameters or isinstance(model_parameters[0], torch.Tensor):
        group = {"params": model_parameters, "name": "dense-params"}
        return split_params_into_different_moe_groups_for_optimizer(group)
    if any("moe" in group for group in model_parameters):
        return model_parameters
    return split_params_into_different_moe_groups_for_optimizer(model_parameters)
