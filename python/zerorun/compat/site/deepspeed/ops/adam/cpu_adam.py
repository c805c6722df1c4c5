"""Adam of CPU ranks."""

from collections.abc import Callable
from typing import Any

import torch

from deepspeed.ops.adam.fused_adam import Adam


class DeepSpeedCPUAdam(Adam):
    """Adam with DeepSpeed's order of arguments.

    Without an engine it computes in fp32 and rounds to the parameters' dtype.
    `fp32_optimizer_states`: False keeps its states in that dtype. Those of an engine have the dtype
    of its masters, fp32, unless the configuration has 16-bit masters: then bf16_optimizer_states
    there decides.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        self,
        model_params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__(
            model_params,
            bias_correction,
            adamw_mode,
            betas,
            lr=lr,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
        )
        self.fp32_optimizer_states = fp32_optimizer_states

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        """Algorithm 2 of Loshchilov and Hutter, arXiv 1711.05101, or Adam with L2."""
        state, lr, decay = self.state[parameter], float(group["lr"]), group["weight_decay"]
        if not state:
            dtype = torch.float32 if self.fp32_optimizer_states else parameter.dtype
            state["step"] = torch.tensor(0.0)
            for name in ("exp_avg", "exp_avg_sq", *["max_exp_avg_sq"] * bool(group["amsgrad"])):
                state[name] = torch.zeros_like(parameter, dtype=dtype)
        state["step"] += 1
        step, (beta1, beta2) = int(state["step"]), group["betas"]
        value, gradient = parameter.float(), parameter.grad.float()
        if group["maximize"]:
            gradient = -gradient
        if self.adam_w_mode:
            value = value * (1 - lr * decay)
        else:
            gradient = gradient + decay * value
        mean = state["exp_avg"].float().lerp(gradient, 1 - beta1)
        square = state["exp_avg_sq"].float() * beta2 + gradient.square() * (1 - beta2)
        state["exp_avg"].copy_(mean)
        state["exp_avg_sq"].copy_(square)
        if group["amsgrad"]:
            square = torch.maximum(state["max_exp_avg_sq"].float(), square)
            state["max_exp_avg_sq"].copy_(square)
        scale = (square / (1 - beta2**step)).sqrt() + group["eps"]
        parameter.copy_(value - lr / (1 - beta1**step) * mean / scale)
