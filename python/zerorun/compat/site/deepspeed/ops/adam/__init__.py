"""Adam: what scripts construct and give to initialize, which runs zerorun's fused kernel."""

from typing import Any

import torch

__all__ = ["DeepSpeedCPUAdam", "FusedAdam"]


class _Adam(torch.optim.AdamW):
    """torch's AdamW or, with adam_w_mode=False, Adam: zerorun runs either with its own kernel."""

    adam_w_mode = True

    def __init__(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
    ) -> None:
        if not bias_correction:
            raise NotImplementedError("bias_correction=False is not part of zerorun")
        super().__init__(
            params, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay, amsgrad=amsgrad
        )
        self.adam_w_mode = adam_w_mode
        for group in self.param_groups:
            group["decoupled_weight_decay"] = adam_w_mode


class DeepSpeedCPUAdam(_Adam):
    """Adam of CPU ranks."""

    def __init__(
        self,
        model_params: Any,
        *args: Any,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
        **kwargs: Any,
    ) -> None:
        if not fp32_optimizer_states:
            raise NotImplementedError("fp32_optimizer_states=False is not part of zerorun")
        super().__init__(model_params, *args, adam_w_mode=adamw_mode, **kwargs)


class FusedAdam(_Adam):
    """Adam of GPU ranks."""

    def __init__(
        self,
        params: Any,
        *args: Any,
        adam_w_mode: bool = True,
        set_grad_none: bool = True,
        **kw: Any,
    ) -> None:
        super().__init__(params, *args, adam_w_mode=adam_w_mode, **kw)
