"""The optimizer of stages 1 and 2."""

from deepspeed.runtime.base_optimizer import DeepSpeedOptimizer


class DeepSpeedZeroOptimizer(DeepSpeedOptimizer):
    """What initialize returns at stages 1 and 2."""
