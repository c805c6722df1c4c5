"""Lamb: run by zerorun's kernel, which sees whole tensors for the trust ratios."""

from typing import Any

from deepspeed.ops._held import Held


class FusedLamb(Held):
    """Lamb with the default limits of the trust ratio, and DeepSpeed's order of arguments."""

    zerorun_rule = "Lamb"

    def __init__(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        eps_inside_sqrt: bool = False,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
        amsgrad: bool = False,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedLamb: Lamb has no variant amsgrad")
        if max_grad_norm:
            raise NotImplementedError("FusedLamb: use gradient_clipping of the configuration")
        if (bias_correction, eps_inside_sqrt, max_coeff, min_coeff) != (True, False, 10.0, 0.01):
            raise NotImplementedError(
                "FusedLamb: zerorun has bias_correction, eps_inside_sqrt, max_coeff and min_coeff "
                'for the optimizer of the configuration: {"type": "Lamb", "params": {...}}'
            )
        super().__init__(params, lr, betas, eps=eps, weight_decay=weight_decay)
