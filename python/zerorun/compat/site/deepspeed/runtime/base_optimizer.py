"""The class of the optimizers that initialize returns."""

from zerorun.optimizer import ZeroOptimizer

DeepSpeedOptimizer = ZeroOptimizer
ZeROOptimizer = ZeroOptimizer
