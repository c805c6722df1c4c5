"""Lamb: run by zerorun's kernel, which sees whole tensors for the trust ratios."""

from typing import Any

import torch


class FusedLamb(torch.optim.Optimizer):
    """Lamb with the default limits of the trust ratio."""

    zerorun_rule = "Lamb"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def step(self, closure: Any = None) -> None:
        raise NotImplementedError(
            "Lamb steps as part of an engine: give it to deepspeed.initialize"
        )
