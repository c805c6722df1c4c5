"""A mixture of experts that ranks hold together."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
import zerorun
from torch import nn
from zerorun.experts import is_expert as is_moe_param

from deepspeed.moe.sharded_moe import MOELayer, TopKGate
from deepspeed.utils import groups


class MoE(nn.Module):
    """As deepspeed.moe.layer.MoE: (output, gate's loss, tokens of each expert) of its input.

    `ep_size` ranks hold the `num_experts` copies of `expert` together; gradients of each are added
    over the ranks that hold it. Tokens go to `k` experts each, of which one takes
    ``capacity_factor * k * tokens / num_experts`` at most unless `drop_tokens` is False.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        self,
        hidden_size: int,
        expert: nn.Module,
        num_experts: int = 1,
        ep_size: int = 1,
        k: int = 1,
        capacity_factor: float = 1.0,
        eval_capacity_factor: float = 1.0,
        min_capacity: int = 4,
        use_residual: bool = False,
        noisy_gate_policy: str | None = None,
        drop_tokens: bool = True,
        use_rts: bool = True,
        use_tutel: bool = False,
        enable_expert_tensor_parallelism: bool = False,
        top2_2nd_expert_sampling: bool = True,
    ) -> None:
        super().__init__()
        if use_tutel or enable_expert_tensor_parallelism:
            raise NotImplementedError(
                "MoE: use_tutel and enable_expert_tensor_parallelism are not part of zerorun: an "
                "expert is whole on each of its ranks; leave them out"
            )
        if num_experts % ep_size != 0:
            raise zerorun.ConfigError(
                f"MoE: ep_size={ep_size} ranks do not divide num_experts={num_experts}"
            )
        self.use_residual, self.ep_size, self.num_experts = use_residual, ep_size, num_experts
        self.expert_group_name = f"ep_size_{ep_size}"
        self.num_local_experts = num_experts // ep_size
        gate = TopKGate(
            hidden_size,
            num_experts,
            k,
            capacity_factor,
            eval_capacity_factor,
            min_capacity,
            noisy_gate_policy,
            drop_tokens,
            use_rts,
            None,
            top2_2nd_expert_sampling,
        )
        experts = Experts(expert, self.num_local_experts, self.expert_group_name)
        self.deepspeed_moe = MOELayer(
            gate, experts, self.expert_group_name, ep_size, self.num_local_experts
        )
        if use_residual:
            self.mlp = expert
            self.coefficient = nn.Linear(hidden_size, 2)

    def set_deepspeed_parallelism(self, use_data_before_expert_parallel_: bool = False) -> None:
        """Makes the layer's groups of ranks, unless there are any; deepspeed.initialize does.

        Collective.
        """
        if self.expert_group_name not in groups._get_expert_parallel_group_dict():
            groups._create_expert_and_data_parallel(
                self.ep_size, use_data_before_expert_parallel_=use_data_before_expert_parallel_
            )
        group = groups._get_expert_parallel_group(self.expert_group_name)
        self.deepspeed_moe._set_ep_group(group)

    def forward(
        self, hidden_states: torch.Tensor, used_token: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        output = self.deepspeed_moe(hidden_states, used_token)
        if self.use_residual:
            beside = self.mlp(hidden_states)
            beside = beside[0] if isinstance(beside, tuple) else beside  # without its bias
            share = F.softmax(self.coefficient(hidden_states), dim=-1)
            output = output * share[..., :1] + beside * share[..., 1:]
        return output, self.deepspeed_moe.l_aux, self.deepspeed_moe.exp_counts


class Experts(nn.Module):
    """Copies of `expert`, each with parameters of its own that other ranks do not have.

    Its input has a block for each of them in dimension 1.
    """

    def __init__(
        self, expert: nn.Module, num_local_experts: int = 1, expert_group_name: str | None = None
    ) -> None:
        super().__init__()
        self.num_local_experts = num_local_experts
        copies = [copy.deepcopy(expert) for _ in range(num_local_experts)]
        self.deepspeed_experts = nn.ModuleList(copies)
        for parameter in self.deepspeed_experts.parameters():
            parameter.allreduce = False
            parameter.group_name = expert_group_name

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        results = []
        pairs = zip(self.deepspeed_experts, inputs.chunk(self.num_local_experts, 1), strict=True)
        for expert, block in pairs:
            found = expert(block)
            results.append(found[0] if isinstance(found, tuple) else found)  # without its bias
        return torch.cat(results, 1)


# --- which parameters are experts', and optimizer groups that keep them apart ---


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
