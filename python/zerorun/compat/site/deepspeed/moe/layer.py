"""A mixture of experts that ranks hold together."""

import torch
import torch.nn.functional as F
import zerorun
from torch import nn

from deepspeed.moe.experts import Experts
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
