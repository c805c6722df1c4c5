"""Lion: run by zerorun's kernel."""

from typing import Any

from deepspeed.ops._held import Held


class FusedLion(Held):
    """Lion of GPU ranks."""

    zerorun_rule = "Lion"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Any = (0.9, 0.99),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(params, lr, betas, weight_decay=weight_decay)
        self.set_grad_none = set_grad_none
