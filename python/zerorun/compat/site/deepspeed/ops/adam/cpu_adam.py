"""Adam of CPU ranks."""

from typing import Any

from deepspeed.ops.adam.fused_adam import Adam


class DeepSpeedCPUAdam(Adam):
    """Adam with DeepSpeed's order of arguments.

    `fp32_optimizer_states`: False gives the states the dtype of what the optimizer updates, which
    are fp32 masters, unless the configuration has 16-bit masters: then bf16_optimizer_states there
    decides.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        self,
        model_params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__(
            model_params,
            bias_correction,
            adamw_mode,
            betas,
            lr=lr,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
        )
        self.fp32_optimizer_states = fp32_optimizer_states
