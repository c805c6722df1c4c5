"""The optimizers that scripts construct and give to initialize, which runs zerorun's kernels.

All have DeepSpeed's order of arguments, and step by themselves without an engine.
"""

import math
from collections.abc import Callable
from typing import Any

import torch


class _Optimizer(torch.optim.Optimizer):
    """Keeps the states `state_names` of each parameter, and computes in fp32: 16-bit parameters are
    rounded after each step. An engine runs `zerorun_rule`, with `rule_settings`, instead.

    `fp32_optimizer_states`: False keeps states without an engine in the parameters' dtype. Those of
    an engine have the dtype of its masters, fp32, unless the configuration has 16-bit masters: then
    bf16_optimizer_states there decides.
    """

    state_names: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
    fp32_optimizer_states = False
    set_grad_none = True

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            if trained:
                self._step(group, trained)
        return loss

    def _step(self, group: dict[str, Any], trained: list[torch.Tensor]) -> None:
        states = [self.state[parameter] for parameter in trained]
        for parameter, state in zip(trained, states, strict=True):
            if not state:
                least = torch.float32 if self.fp32_optimizer_states else parameter.dtype
                dtype = torch.promote_types(least, parameter.dtype)
                state["step"] = 0
                for name in self.state_names:
                    state[name] = torch.zeros_like(parameter, dtype=dtype)
            state["step"] += 1
        kept = [trained, *([state[name] for state in states] for name in self.state_names)]
        used = [[_computed(tensor) for tensor in tensors] for tensors in kept]
        gradients = [_computed(parameter.grad.to_dense()) for parameter in trained]
        self._update(group, [state["step"] for state in states], gradients, *used)
        for tensors, results in zip(kept, used, strict=True):
            for tensor, result in zip(tensors, results, strict=True):
                if result is not tensor:
                    tensor.copy_(result)

    def _update(self, group: Any, steps: Any, gradients: Any, values: Any, *states: Any) -> None:
        """Changes the values and the states in place."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:  # of copies
        return vars(self) | super().__getstate__()

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)


def _computed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where kernels can compute with it."""
    return (tensor if tensor.dtype == torch.float64 else tensor.float()).contiguous()


class _ConfiguredAdam(type):
    """isinstance() is true of the configuration's Adam as well, which has no class of its own."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return super().__instancecheck__(instance) or getattr(instance, "fused_rule", "") in {
            "Adam",
            "AdamW",
        }


class Adam(_Optimizer, metaclass=_ConfiguredAdam):
    """AdamW or, with adam_w_mode=False, Adam."""

    adam_w_mode = True

    def __init__(
        self, params: Any, bias_correction: bool, adam_w_mode: bool, amsgrad: bool, **options: Any
    ) -> None:
        options |= {"bias_correction": bias_correction, "amsgrad": amsgrad}
        super().__init__(params, options | {"decoupled_weight_decay": adam_w_mode})
        self.adam_w_mode = adam_w_mode
        if amsgrad:
            self.state_names = (*self.state_names, "max_exp_avg_sq")

    def _update(self, group: Any, steps: Any, gradients: Any, values: Any, *states: Any) -> None:
        means, squares, *largest = states
        beta1, beta2 = map(float, group["betas"])
        corrected = steps if group.get("bias_correction", True) else [math.inf] * len(steps)
        update = torch._fused_adamw_ if self.adam_w_mode else torch._fused_adam_
        update(
            values,
            gradients,
            means,
            squares,
            *(largest or [[]]),
            [torch.tensor(float(step), device=values[0].device) for step in corrected],
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=bool(largest),
            maximize=False,
        )


class FusedAdam(Adam):
    """Adam of GPU ranks."""

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
        options = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, bias_correction, adam_w_mode, amsgrad, **options)
        self.set_grad_none = set_grad_none


class DeepSpeedCPUAdam(Adam):
    """Adam with DeepSpeed's defaults for CPUs."""

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
        options = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(model_params, bias_correction, adamw_mode, amsgrad, **options)
        self.fp32_optimizer_states = fp32_optimizer_states


class DeepSpeedCPUAdagrad(_Optimizer):
    """Adagrad, with DeepSpeed's name of its state."""

    state_names = ("exp_avg_sq",)

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
        super().__init__(model_params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})
        self.fp32_optimizer_states = fp32_optimizer_states

    def _update(self, group: Any, steps: Any, gradients: Any, values: Any, *states: Any) -> None:
        (sums,) = states
        gradients = torch._foreach_add(gradients, values, alpha=group["weight_decay"])
        torch._foreach_addcmul_(sums, gradients, gradients)
        roots = torch._foreach_add(torch._foreach_sqrt(sums), group["eps"])
        torch._foreach_addcdiv_(values, gradients, roots, value=-float(group["lr"]))


class FusedLamb(_Optimizer):
    """Lamb of You et al., arXiv 1904.00962, with limits of the trust ratio, which is that of the
    means without bias correction, as in DeepSpeed 0.19.8."""

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
        self.rule_settings = {
            "bias_correction": bias_correction,
            "eps_inside_sqrt": eps_inside_sqrt,
            "max_coeff": max_coeff,
            "min_coeff": min_coeff,
        }
        options = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, options)
        self.lamb_coeffs: list[torch.Tensor] = []

    def get_lamb_coeffs(self) -> list[float]:
        """The trust ratios of the last step without an engine, by parameter."""
        if "step" in vars(self):  # the engine's
            raise NotImplementedError(
                "FusedLamb.get_lamb_coeffs: an engine's trust ratios are not kept after its step"
            )
        return [ratio.item() for ratio in self.lamb_coeffs]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        self.lamb_coeffs = []
        return super().step(closure)

    def _update(self, group: Any, steps: Any, gradients: Any, values: Any, *states: Any) -> None:
        rule, (beta1, beta2) = self.rule_settings, map(float, group["betas"])
        for value, gradient, mean, square, step in zip(
            values, gradients, *states, steps, strict=True
        ):
            mean.lerp_(gradient, 1 - beta1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            if rule["eps_inside_sqrt"]:
                root = (square + group["eps"]).sqrt()
            else:
                root = square.sqrt() + group["eps"]
            direction = mean / root + group["weight_decay"] * value
            norms = torch.stack([value.norm(), direction.norm()])
            ratio = (norms[0] / norms[1]).clamp(rule["min_coeff"], rule["max_coeff"])
            ratio = torch.where(norms.all(), ratio, 1.0)
            self.lamb_coeffs.append(ratio)
            lr = float(group["lr"])
            if rule["bias_correction"]:
                lr *= math.sqrt(1 - beta2**step) / (1 - beta1**step)
            value.sub_(lr * ratio * direction)


class _Lion(_Optimizer):
    """Lion: Algorithm 2 of Chen et al., arXiv 2302.06675."""

    zerorun_rule = "Lion"
    state_names = ("exp_avg",)

    def __init__(self, params: Any, lr: float, betas: Any, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay})

    def _update(self, group: Any, steps: Any, gradients: Any, values: Any, *states: Any) -> None:
        lr, (beta1, beta2), (means,) = float(group["lr"]), group["betas"], states
        signs = torch._foreach_sign(torch._foreach_lerp(means, gradients, 1 - beta1))
        torch._foreach_mul_(values, 1 - lr * group["weight_decay"])
        torch._foreach_add_(values, signs, alpha=-lr)
        torch._foreach_lerp_(means, gradients, 1 - beta2)


class FusedLion(_Lion):
    """Lion of GPU ranks."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Any = (0.9, 0.999),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(params, lr, betas, weight_decay)
        self.set_grad_none = set_grad_none


class DeepSpeedCPULion(_Lion):
    """Lion of CPUs."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        betas: Any = (0.9, 0.999),
        weight_decay: float = 0.0,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__(model_params, lr, betas, weight_decay)
        self.fp32_optimizer_states = fp32_optimizer_states
