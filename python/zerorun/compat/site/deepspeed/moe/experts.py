"""The experts of a layer that this rank holds."""

import copy

import torch
from torch import nn


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
