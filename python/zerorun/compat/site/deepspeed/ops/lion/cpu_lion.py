"""Lion of CPU ranks."""

from typing import Any

from deepspeed.ops._held import Held


class DeepSpeedCPULion(Held):
    """Lion with DeepSpeed's defaults for CPUs. `fp32_optimizer_states` as in DeepSpeedCPUAdam."""

    zerorun_rule = "Lion"

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        betas: Any = (0.9, 0.999),
        weight_decay: float = 0.0,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__(model_params, lr, betas, weight_decay=weight_decay)
        self.fp32_optimizer_states = fp32_optimizer_states
