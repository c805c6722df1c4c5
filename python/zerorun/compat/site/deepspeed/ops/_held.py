"""The optimizers that are an engine's to run."""

from collections.abc import Iterable
from typing import Any

import torch


class Held(torch.optim.Optimizer):
    """Groups and hyperparameters, for an engine whose rule is called `zerorun_rule`."""

    zerorun_rule: str

    def __init__(self, params: Any, lr: float, betas: Iterable[float], **options: float) -> None:
        super().__init__(params, {"lr": lr, "betas": tuple(betas), **options})

    def step(self, closure: Any = None) -> None:
        raise NotImplementedError(
            f"{self.zerorun_rule} steps as part of an engine: give it to deepspeed.initialize"
        )
