"""Adagrad."""

from typing import Any

import torch


class DeepSpeedCPUAdagrad(torch.optim.Adagrad):
    """torch's, on shards, with DeepSpeed's order of arguments. `fp32_optimizer_states` as in
    DeepSpeedCPUAdam."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        fp32_optimizer_states: bool = True,
    ) -> None:
        if amsgrad:
            raise RuntimeError("DeepSpeedCPUAdagrad: Adagrad has no variant amsgrad")
        super().__init__(model_params, lr=lr, eps=eps, weight_decay=weight_decay)
        self.fp32_optimizer_states = fp32_optimizer_states
