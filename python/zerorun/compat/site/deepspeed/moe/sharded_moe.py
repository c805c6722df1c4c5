"""Which tokens go to which experts, and the way there and back.

Source: Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation and Automatic
Sharding"; Fedus et al., "Switch Transformers".
"""

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
import zerorun
from torch import nn
from zerorun.sequence.groups import AllToAll

_JITTER = 1e-2

# Of a gate: its loss, weights [token, expert, place], where they are not 0, tokens of each expert.
Routes = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _capacity(gates: torch.Tensor, factor: float, least: int) -> int:
    tokens, experts = gates.shape
    return max(math.ceil(tokens / experts * factor), least)


def _largest(counts: torch.Tensor, group: Any) -> int:
    """The most places that any expert needs on any of the group's ranks, which may have different
    numbers of tokens."""
    most = counts.max()
    if group is not None:
        dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    return int(most)


def _places(mask: torch.Tensor) -> torch.Tensor:
    """The number of each token among those of its expert."""
    return mask.cumsum(0) - 1


def _routes(weights: torch.Tensor, places: torch.Tensor, capacity: int) -> torch.Tensor:
    """`weights` [token, expert] at each token's place; those without a place are 0."""
    return weights.unsqueeze(-1) * F.one_hot(places.clamp(0, capacity - 1), capacity)


def _balance(gates: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Product of the part of the gate and that of the tokens of each expert, their average."""
    return (gates.mean(0) * mask.float().mean(0)).sum() * gates.shape[1]


def _most(mask: torch.Tensor, order: torch.Tensor, capacity: int) -> torch.Tensor:
    """Of each expert's tokens in `mask`, those with the largest numbers in `order`."""
    kept = (mask * order).topk(capacity, 0).indices
    return mask * torch.zeros_like(mask).scatter(0, kept, 1)


def _normalized(gates: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The gates of the chosen experts, which add up to 1 for each token."""
    weights = gates * mask
    return weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(gates.dtype).eps)


def _noise_like(logits: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Gumbel(0.0, 1.0).sample(logits.shape).to(logits)


def top1gating(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
    logits: torch.Tensor,
    capacity_factor: float,
    min_capacity: int,
    used_token: torch.Tensor | None = None,
    noisy_gate_policy: str | None = None,
    drop_tokens: bool = True,
    use_rts: bool = True,
    ep_group: Any = None,
    sparse_routes: bool = False,
    use_tutel: bool = False,
) -> Routes:
    """Each token to its best expert; of those beyond the capacity, random ones (`use_rts`) or the
    last are dropped."""
    _refuse(sparse_routes=sparse_routes, use_tutel=use_tutel)
    gates = F.softmax(logits, dim=1)
    chosen_by = logits + _noise_like(logits) if noisy_gate_policy == "RSample" else gates
    mask = F.one_hot(chosen_by.argmax(1), gates.shape[1])
    if used_token is not None:
        mask = mask * used_token.to(mask.dtype).unsqueeze(1)
    counts = mask.sum(0).detach()
    capacity = _capacity(gates, capacity_factor, min_capacity)
    if not drop_tokens:
        capacity = _largest(counts, ep_group)
    loss = _balance(gates, mask)
    if drop_tokens and capacity < len(mask):
        # Without random numbers those of earlier tokens are larger.
        in_order = torch.linspace(1.0, 0.5, len(gates), device=gates.device).unsqueeze(1)
        mask = _most(mask, torch.rand_like(gates) if use_rts else in_order, capacity)
    weights = _routes(gates * mask, _places(mask), capacity)
    return loss, weights, weights.bool(), counts


def _refuse(**options: bool) -> None:
    for name in [name for name, is_given in options.items() if is_given]:
        raise NotImplementedError(f"{name} is not part of zerorun: leave it out")


def top2gating(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
    logits: torch.Tensor,
    capacity_factor: float,
    min_capacity: int,
    drop_tokens: bool = True,
    ep_group: Any = None,
    top2_2nd_expert_sampling: bool = True,
    sparse_routes: bool = False,
) -> Routes:
    """Each token to its best expert and to the next, which may be drawn with Gumbel noise; first
    choices have the places before second ones."""
    _refuse(sparse_routes=sparse_routes)
    gates = F.softmax(logits, dim=1)
    first = F.one_hot(gates.argmax(1), gates.shape[1])
    others = logits + _noise_like(logits) if top2_2nd_expert_sampling else logits
    second = F.one_hot(others.masked_fill(first.bool(), -math.inf).argmax(1), gates.shape[1])
    places = _places(first), _places(second) + first.sum(0)
    loss = _balance(gates, first)
    counts = (first + second).sum(0).detach()
    capacity = _capacity(gates, capacity_factor * 2, min_capacity)
    if drop_tokens:
        first, second = (
            mask * (at < capacity) for mask, at in zip((first, second), places, strict=True)
        )
    else:
        capacity = _largest(counts, ep_group)
    weights = _normalized(gates, first + second)
    routed = sum(
        _routes(weights * mask, at, capacity)
        for mask, at in zip((first, second), places, strict=True)
    )
    return loss, routed, routed.bool(), counts


def topkgating(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
    logits: torch.Tensor,
    k: int,
    capacity_factor: float,
    min_capacity: int,
    drop_tokens: bool = True,
    ep_group: Any = None,
    drop_policy: str = "probs",
    sparse_routes: bool = False,
) -> Routes:
    """Each token to its `k` best experts; those beyond the capacity are the least probable ones
    ("probs") or the last ("position")."""
    _refuse(sparse_routes=sparse_routes)
    gates = F.softmax(logits, dim=1)
    mask = torch.zeros_like(gates, dtype=torch.int64).scatter(1, gates.topk(k, 1).indices, 1)
    loss = _balance(gates, mask) / k
    counts = mask.sum(0).detach()
    capacity = _capacity(gates, capacity_factor * k, min_capacity)
    if not drop_tokens:
        capacity = _largest(counts, ep_group)
    elif drop_policy == "probs":
        mask = _most(mask, gates, min(capacity, len(gates)))
    elif drop_policy == "position":
        mask = mask * (_places(mask) < capacity)
    else:
        raise ValueError(f"drop_policy: got {drop_policy!r}, expected 'probs' or 'position'")
    routed = _routes(_normalized(gates, mask), _places(mask), capacity)
    return loss, routed, routed.bool(), counts


class TopKGate(nn.Module):
    """A linear map in fp32 that chooses experts."""

    def __init__(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        self,
        model_dim: int,
        num_experts: int,
        k: int = 1,
        capacity_factor: float = 1.0,
        eval_capacity_factor: float = 1.0,
        min_capacity: int = 8,
        noisy_gate_policy: str | None = None,
        drop_tokens: bool = True,
        use_rts: bool = True,
        ep_group: Any = None,
        top2_2nd_expert_sampling: bool = True,
    ) -> None:
        super().__init__()
        if noisy_gate_policy not in {None, "None", "Jitter", "RSample"}:
            raise zerorun.ConfigError(
                f"noisy_gate_policy: got {noisy_gate_policy!r}, expected 'Jitter' or 'RSample'"
            )
        self.wg = nn.Linear(model_dim, num_experts, bias=False)
        self.ep_group, self.k, self.min_capacity = ep_group, k, min_capacity
        self.capacity_factor, self.eval_capacity_factor = capacity_factor, eval_capacity_factor
        self.noisy_gate_policy, self.drop_tokens = noisy_gate_policy, drop_tokens
        self.use_rts, self.top2_2nd_expert_sampling = use_rts, top2_2nd_expert_sampling

    def forward(
        self,
        input: torch.Tensor,  # noqa: A002 - DeepSpeed's name
        used_token: torch.Tensor | None = None,
        sparse_routes: bool = False,
        use_tutel: bool = False,
    ) -> Routes:
        _refuse(sparse_routes=sparse_routes, use_tutel=use_tutel)
        values = input.float()
        if self.training and self.noisy_gate_policy == "Jitter":
            values = values * torch.empty_like(values).uniform_(1 - _JITTER, 1 + _JITTER)
        logits = F.linear(values, self.wg.weight.float())
        factor = self.capacity_factor if self.training else self.eval_capacity_factor
        sizes = factor, self.min_capacity
        if self.k == 1:
            policy = self.noisy_gate_policy if self.training else None
            rule = (used_token, policy, self.drop_tokens, self.use_rts)
            return top1gating(logits, *sizes, *rule, self.ep_group)
        if self.k == 2:
            sampling = self.top2_2nd_expert_sampling
            return top2gating(logits, *sizes, self.drop_tokens, self.ep_group, sampling)
        return topkgating(logits, self.k, *sizes, self.drop_tokens, self.ep_group)


class _AllToAll:
    """AllToAll as programs import and call it."""

    @staticmethod
    def apply(group: Any, values: torch.Tensor) -> torch.Tensor:
        return AllToAll.apply(values, group)


class MOELayer(nn.Module):
    """A gate and the experts of several ranks."""

    def __init__(
        self,
        gate: nn.Module,
        experts: nn.Module,
        ep_group_name: str,
        ep_size: int,
        num_local_experts: int,
        use_tutel: bool = False,
    ) -> None:
        super().__init__()
        _refuse(use_tutel=use_tutel)
        self.gate, self.experts = gate, experts
        self.ep_group: Any = None
        self.ep_group_name, self.ep_size = ep_group_name, ep_size
        self.num_local_experts = num_local_experts
        self.l_aux: Any = 0.0
        self.exp_counts: Any = None

    def _set_ep_group(self, ep_group: Any) -> None:
        self.ep_group = self.gate.ep_group = ep_group

    def forward(self, *inputs: Any) -> torch.Tensor:
        hidden, used = inputs[0], inputs[1] if len(inputs) > 1 else None
        if self.ep_group is None and self.ep_size > 1:
            raise zerorun.ConfigError(
                "MoE: the layer's groups of ranks are not there yet: call deepspeed.initialize, or "
                "the layer's set_deepspeed_parallelism(), before forward"
            )
        tokens = hidden.flatten(0, -2)
        self.l_aux, weights, mask, self.exp_counts = self.gate(tokens, used)
        sent = torch.einsum("sec,sm->ecm", mask.type_as(tokens), tokens)
        if self.ep_size > 1:
            sent = AllToAll.apply(sent, self.ep_group)
        blocks = sent.reshape(self.ep_size, self.num_local_experts, -1, tokens.shape[-1])
        found = self.experts(blocks).reshape(sent.shape)
        if self.ep_size > 1:
            found = AllToAll.apply(found, self.ep_group)
        return torch.einsum("sec,ecm->sm", weights.type_as(tokens), found).view(hidden.shape)
