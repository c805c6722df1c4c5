"""The optimizers that scripts construct and give to initialize, which runs zerorun's kernels.

All have DeepSpeed's order of arguments.
"""

from collections.abc import Callable, Iterable
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
    """torch's AdamW or, with adam_w_mode=False, Adam: zerorun runs either with its own kernel.

    Without an engine it computes in fp32 and rounds to the parameters' dtype.
    """

    adam_w_mode = True
    fp32_optimizer_states = False

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
            params, bias_correction, adam_w_mode, betas, lr=lr, eps=eps, weight_decay=weight_decay
        )
        self.set_grad_none = set_grad_none


class DeepSpeedCPUAdam(Adam):
    """Adam with DeepSpeed's order of arguments.

    `fp32_optimizer_states`: False keeps states without an engine in the parameters' dtype. Those of
    an engine have the dtype of its masters, fp32, unless the configuration has 16-bit masters: then
    bf16_optimizer_states there decides.
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
        options = {"lr": lr, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(model_params, bias_correction, adamw_mode, betas, **options)
        self.fp32_optimizer_states = fp32_optimizer_states


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


class _Held(torch.optim.Optimizer):
    """Groups and hyperparameters, for an engine whose rule is called `zerorun_rule`."""

    zerorun_rule: str

    def __init__(self, params: Any, lr: float, betas: Iterable[float], **options: float) -> None:
        super().__init__(params, {"lr": lr, "betas": tuple(betas), **options})

    def step(self, closure: Any = None) -> None:
        raise NotImplementedError(
            f"{self.zerorun_rule} steps as part of an engine: give it to deepspeed.initialize"
        )


class FusedLamb(_Held):
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


class FusedLion(_Held):
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


class DeepSpeedCPULion(_Held):
    """Lion with DeepSpeed's defaults for CPUs. `fp32_optimizer_states` as in DeepSpeedCPUAdam."""

    zerorun_rule = "Lion"

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        betas: Any = (0.9, 0.999),
        weight_decay: float = 0.0,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__(model_params, lr, betas, weight_decay=weight_decay)
        self.fp32_optimizer_states = fp32_optimizer_states
