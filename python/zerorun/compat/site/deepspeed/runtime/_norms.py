"""Norms of tensors of which other ranks hold other parts (Megatron's layers, experts), and values
that are not finite, on any rank that shares a step."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from zerorun.experts import is_expert
from zerorun.model.engine_ranks import is_marked

from deepspeed.accelerator import get_accelerator
from deepspeed.utils import (
    bwc_pipeline_parallel_group,
    bwc_pipeline_parallel_world_size,
    bwc_tensor_model_parallel_rank,
    groups,
)

_INVALID = -1.0  # stands for a norm that is not finite
_EPS = 1e-6


def is_model_parallel_parameter(p: Any) -> bool:
    return is_marked(p)


def _listed(parameters: Any) -> list[Any]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _counted(parameters: list[Any], mpu: Any) -> list[Any]:
    """Without those that another rank of the model counts."""
    first = bwc_tensor_model_parallel_rank(mpu) == 0
    own = [p for p in parameters if first or is_model_parallel_parameter(p)]
    return [p for p in own if not getattr(p, "ds_pipe_replicated", False)]


def _norm_over(
    tensors: Sequence[torch.Tensor], norm_type: float, process_groups: Iterable[Any] = ()
) -> torch.Tensor:
    """The norm of these tensors and of those of the groups' other ranks, fp32. Collective."""
    device = get_accelerator().current_device_name()
    parts = [torch.linalg.vector_norm(t.detach().float(), norm_type).to(device) for t in tensors]
    total = torch.stack(parts) if parts else torch.zeros(1, device=device)
    largest = math.isinf(norm_type)
    total = total.max() if largest else total.pow(norm_type).sum()
    for group in process_groups:
        dist.all_reduce(total, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group)
    return total if largest else total.pow(1 / norm_type)


def _model_groups(mpu: Any) -> list[Any]:
    return [] if mpu is None else [mpu.get_model_parallel_group()]


def get_weight_norm(parameters: Any, norm_type: float = 2, mpu: Any = None) -> float:
    """The norm of the parameters, over the ranks of a model; -1 if it is not finite."""
    values = [p.data for p in _counted(_listed(parameters), mpu)]
    norm = float(_norm_over(values, float(norm_type), _model_groups(mpu)))
    return norm if math.isfinite(norm) else _INVALID


def get_global_norm(norm_list: Iterable[Any]) -> float:
    """The L2 norm of parts with these norms; infinite if one of them is not a norm."""
    norms = list(norm_list)
    if any(map(is_invalid_grad_norm, norms)):
        return math.inf
    return math.sqrt(sum(float(norm) ** 2 for norm in norms))


def combine_grad_norm_groups(norm_groups: Iterable[Any], norm_type: float = 2) -> torch.Tensor:
    """As get_global_norm, of any type and on the norms' device."""
    given = list(norm_groups)
    device = next((norm.device for norm in given if isinstance(norm, torch.Tensor)), None)
    norms = torch.stack([torch.as_tensor(n, dtype=torch.float, device=device) for n in given])
    total = torch.linalg.vector_norm(norms, norm_type)
    return total if not is_invalid_grad_norm(norms) else torch.full_like(total, math.inf)


def get_global_norm_of_tensors(
    input_tensors: Sequence[torch.Tensor],
    norm_type: float = 2,
    mpu: Any = None,
    moe_ep_group: Any = None,
) -> torch.Tensor:
    """The norm of tensors over the ranks of a model, and over those with other experts; a scalar,
    -1 if it is not finite. Collective where there are such ranks."""
    sharing = _model_groups(mpu)
    if sharing and moe_ep_group is not None and groups._get_expert_model_parallel_world_size() <= 1:
        # Experts are not divided as the rest of the model is.
        has_stages = bwc_pipeline_parallel_world_size(mpu) > 1
        sharing = [bwc_pipeline_parallel_group(mpu)] if has_stages else []
    if moe_ep_group is not None:
        sharing.append(moe_ep_group)
    norm = _norm_over(input_tensors, float(norm_type), sharing).to(input_tensors[0].device)
    mask_nan_or_inf_with_val_inplace(norm, val=_INVALID)
    return norm


def clip_tensors_by_global_norm(
    input_tensors: Sequence[torch.Tensor],
    max_norm: float = 1.0,
    global_norm: Any = None,
    mpu: Any = None,
    eps: float = _EPS,
) -> Any:
    """Clips tensors in place; returns the norm from before."""
    if global_norm is None:
        global_norm = get_global_norm_of_tensors(input_tensors, mpu=mpu)
    factor = max_norm / (global_norm + eps)
    if 0 <= factor < 1:  # not for -1, the norm of what is not finite
        for tensor in input_tensors:
            tensor.detach().mul_(factor)
    return global_norm


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, mpu: Any = None
) -> torch.Tensor:
    """torch's, for parameters that no engine manages: over the ranks of a model, and with the
    average of what data-parallel ranks find (their experts differ). Collective."""
    given = _listed(parameters)
    graded = [p for p in given if p.grad is not None]
    if not graded:
        return nn.utils.clip_grad_norm_(given, max_norm, norm_type)
    own = [p.grad for p in (_counted(graded, mpu) if mpu is not None else graded)]
    norm = _norm_over(own, float(norm_type), _model_groups(mpu))
    if dist.is_initialized():
        sharing = groups._get_data_parallel_group()
        norm = norm / dist.get_world_size(sharing)
        dist.all_reduce(norm, group=sharing)
    factor = (max_norm / (norm + _EPS)).clamp(max=1.0)
    for parameter in graded:
        parameter.grad.detach().mul_(factor.to(parameter.grad.device))
    return norm.to(graded[0].device)


def get_norm_with_moe_layers(
    non_expert_norm: Any, mpu: Any, expert_tensors: Any, norm_type: float = 2
) -> float:
    """The norm of a model with experts; `expert_tensors` has this rank's by name of their group.
    -1 if it is not finite. Collective."""
    norms = [torch.as_tensor(non_expert_norm, dtype=torch.float)]
    for name, tensors in expert_tensors.items():
        group = groups._get_expert_parallel_group(name)
        norms.append(get_global_norm_of_tensors(tensors, norm_type, mpu, group).cpu())
    total = float(combine_grad_norm_groups([norm.cpu() for norm in norms], norm_type))
    return total if math.isfinite(total) else _INVALID


def has_inf_or_nan(x: torch.Tensor) -> torch.Tensor:
    """A scalar on the tensor's device, without a copy of the tensor."""
    values = x._values() if x.is_sparse else x
    if values.numel() == 0:
        return torch.tensor(False, device=x.device)
    return ~torch.stack(torch.aminmax(values)).isfinite().all()


def is_invalid_grad_norm(norm: Any) -> bool:
    """True for what is not finite, and for -1, which stands for such norms."""
    if isinstance(norm, torch.Tensor):
        return bool((~norm.isfinite() | (norm < 0)).any())
    return not math.isfinite(norm) or norm < 0


def mask_nan_or_inf_with_val_inplace(
    input: torch.Tensor,  # noqa: A002 - DeepSpeed's name
    device: Any = None,
    val: float = -1.0,
) -> None:
    input.masked_fill_(~input.isfinite(), val)


class CheckOverflow:
    """Looks for gradients that are not finite, for programs that reduce gradients themselves.

    All ranks that share experts or parts of a model get the same answer.
    """

    def __init__(
        self,
        param_groups: Iterable[Iterable[torch.Tensor]] | None = None,
        mpu: Any = None,
        zero_reduce_scatter: bool = False,
        deepspeed: Any = None,
    ) -> None:
        self.mpu, self.deepspeed = mpu, deepspeed
        self.zero_reduce_scatter = zero_reduce_scatter
        self.params = [p for group in param_groups for p in group] if param_groups else None
        self.has_moe_params = any(map(is_expert, self.params or ()))

    def check_using_norm(self, norm_group: Iterable[Any], reduce_overflow: bool = True) -> bool:
        """True if one of the norms is of such gradients. Collective."""
        alone = self.mpu is None and not reduce_overflow
        found = any(map(is_invalid_grad_norm, norm_group))
        return self._on_any_rank(found, self.has_moe_params, everywhere=not alone)

    def check(self, param_groups: Iterable[Iterable[torch.Tensor]] | None = None) -> bool:
        """Of these parameters, or of those that it was made for. Collective."""
        if param_groups is None:
            return self.has_overflow(self.params or [])
        given = [p for group in param_groups for p in group]
        return self.has_overflow(given, any(map(is_expert, given)))

    @staticmethod
    def has_overflow_serial(params: Iterable[torch.Tensor]) -> bool:
        """On this rank alone."""
        return any(p.grad is not None and bool(has_inf_or_nan(p.grad)) for p in params)

    def has_overflow(
        self, params: Iterable[torch.Tensor], has_moe_params: bool | None = None
    ) -> bool:
        """Collective."""
        experts = self.has_moe_params if has_moe_params is None else has_moe_params
        own_gradients = not getattr(self.deepspeed, "enable_backward_allreduce", True)
        everywhere = self.zero_reduce_scatter or own_gradients
        return self._on_any_rank(self.has_overflow_serial(params), experts, everywhere)

    def _on_any_rank(self, found: bool, experts: bool, everywhere: bool) -> bool:
        flag = torch.tensor(float(found), device=get_accelerator().current_device_name())
        if everywhere and self.mpu is None:
            dist.all_reduce(flag, dist.ReduceOp.MAX)
            return bool(flag)
        if experts:
            dist.all_reduce(flag, dist.ReduceOp.MAX, groups._get_max_expert_parallel_group())
        if self.mpu is not None:
            if everywhere:
                dist.all_reduce(flag, dist.ReduceOp.MAX, self.mpu.get_data_parallel_group())
            dist.all_reduce(flag, dist.ReduceOp.MAX, self.mpu.get_model_parallel_group())
        return bool(flag)
