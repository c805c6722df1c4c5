"""Lion (Chen et al. 2023, arXiv:2302.06675): the sign of an interpolated momentum."""

from collections.abc import Callable
from typing import Any

import torch


class _Lion(torch.optim.Optimizer):
    def __init__(
        self, params: Any, lr: float = 1e-3, betas: Any = (0.9, 0.99), weight_decay: float = 0.0, **_: Any
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                average = state["exp_avg"]
                update = torch.lerp(parameter.grad, average, beta1).sign_()
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"])
                average.lerp_(parameter.grad, 1 - beta2)


class DeepSpeedCPULion(_Lion):
    """Lion of CPU ranks."""


class FusedLion(_Lion):
    """Lion of GPU ranks."""
