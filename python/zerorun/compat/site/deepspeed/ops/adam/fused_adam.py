"""Adam: what scripts construct and give to initialize, which runs zerorun's fused kernel."""

from typing import Any

import torch


class _ConfiguredAdam(type):
    """isinstance() is true of the configuration's Adam as well, which has no class of its own."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return super().__instancecheck__(instance) or getattr(instance, "fused_rule", "") in {
            "Adam",
            "AdamW",
        }


class Adam(torch.optim.AdamW, metaclass=_ConfiguredAdam):
    """torch's AdamW or, with adam_w_mode=False, Adam: zerorun runs either with its own kernel."""

    adam_w_mode = True

    def __init__(
        self,
        params: Any,
        bias_correction: bool,
        adam_w_mode: bool,
        betas: Any = (0.9, 0.999),
        **options: Any,
    ) -> None:
        if not bias_correction:
            raise NotImplementedError(
                f"{type(self).__name__}: zerorun has bias_correction=False for the optimizer of "
                'the configuration: {"type": "AdamW", "params": {"bias_correction": false}}'
            )
        super().__init__(params, betas=tuple(betas), **options)
        self.adam_w_mode = adam_w_mode
        for group in self.param_groups:
            group["decoupled_weight_decay"] = adam_w_mode


class FusedAdam(Adam):
    """Adam of GPU ranks, with DeepSpeed's order of arguments."""

    def __init__(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedAdam: amsgrad is of torch.optim.AdamW, which zerorun runs too")
        super().__init__(
            params,
            bias_correction,
            adam_w_mode,
            betas,
            lr=lr,
            eps=eps,
            weight_decay=weight_decay,
        )
        self.set_grad_none = set_grad_none
