"""Lion: run by zerorun's kernel."""

from typing import Any

import torch


class _Lion(torch.optim.Optimizer):
    zerorun_rule = "Lion"

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: Any = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay})

    def step(self, closure: Any = None) -> None:
        raise NotImplementedError(
            "Lion steps as part of an engine: give it to deepspeed.initialize"
        )


class DeepSpeedCPULion(_Lion):
    """Lion of CPU ranks."""


class FusedLion(_Lion):
    """Lion of GPU ranks."""
