"""Values that are not finite, found on any rank that shares a step."""

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from zerorun.experts import is_expert

from deepspeed.accelerator import get_accelerator
from deepspeed.utils import groups


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
