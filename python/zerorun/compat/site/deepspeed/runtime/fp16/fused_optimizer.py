"""The name of the optimizer of stage 0 in 16 bits that runs Adam."""

from typing import Any

from deepspeed.ops.adam.fused_adam import FusedAdam
from deepspeed.runtime.base_optimizer import DeepSpeedOptimizer


def is_half_without_zero(instance: Any) -> bool:
    """True for what initialize returns at stage 0 in fp16 or bf16."""
    if not isinstance(instance, DeepSpeedOptimizer):
        return False
    return instance.engine.zero_optimization_stage() == 0 and instance.dtype.itemsize < 4


def is_fused(optimizer: DeepSpeedOptimizer) -> bool:
    """True for the configuration's Adam, and for a FusedAdam of the program's."""
    given = optimizer.engine.client_optimizer
    return isinstance(given or optimizer, FusedAdam)


class _Kind(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return is_half_without_zero(instance) and is_fused(instance)


class FP16_Optimizer(metaclass=_Kind):  # noqa: N801 - DeepSpeed's name
    """For isinstance(): initialize makes them."""
