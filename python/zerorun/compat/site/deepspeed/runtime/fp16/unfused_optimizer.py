"""The name of the optimizer of stage 0 in 16 bits that runs others than Adam."""

from typing import Any

from deepspeed.runtime.fp16.fused_optimizer import is_fused, is_half_without_zero


class _Kind(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return is_half_without_zero(instance) and not is_fused(instance)


class FP16_UnfusedOptimizer(metaclass=_Kind):  # noqa: N801 - DeepSpeed's name
    """For isinstance(): initialize makes them."""
