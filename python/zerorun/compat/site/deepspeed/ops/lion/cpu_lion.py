"""Lion of CPU ranks."""

from typing import Any

from deepspeed.ops.lion.fused_lion import Lion


class DeepSpeedCPULion(Lion):
    """Lion with DeepSpeed's defaults for CPUs. `fp32_optimizer_states` as in DeepSpeedCPUAdam."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        betas: Any = (0.9, 0.999),
        weight_decay: float = 0.0,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__(model_params, lr, betas, weight_decay)
        self.fp32_optimizer_states = fp32_optimizer_states
