"""Lion: run by zerorun's kernel."""

from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Holds groups and hyperparameters for an engine."""

    zerorun_rule = "Lion"

    def __init__(self, params: Any, lr: float, betas: Any, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay})

    def step(self, closure: Any = None) -> None:
        raise NotImplementedError(
            "Lion steps as part of an engine: give it to deepspeed.initialize"
        )


class FusedLion(Lion):
    """Lion of GPU ranks."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Any = (0.9, 0.99),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(params, lr, betas, weight_decay)
        self.set_grad_none = set_grad_none
