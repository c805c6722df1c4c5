"""Masters, gradients and optimizer states of parameters."""

from collections.abc import Callable, Iterable

import torch
from torch import nn
from zerorun.zero import (
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_full_optimizer_state,
    safe_get_local_fp32_param,
    safe_get_local_grad,
    safe_get_local_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_grad,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_grad,
    safe_set_local_optimizer_state,
)

__all__ = [
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "safe_get_local_fp32_param",
    "safe_get_local_grad",
    "safe_get_local_optimizer_state",
    "safe_set_full_fp32_param",
    "safe_set_full_grad",
    "safe_set_full_optimizer_state",
    "safe_set_local_fp32_param",
    "safe_set_local_grad",
    "safe_set_local_optimizer_state",
    "safe_update_full_grad_vectorized",
]


def safe_update_full_grad_vectorized(
    param_list: Iterable[nn.Parameter],
    update_func: Callable[[torch.Tensor, nn.Parameter], torch.Tensor],
) -> None:
    """Replaces the averaged gradient of each parameter by ``update_func(gradient, parameter)``.

    Between backward and step. Collective: every rank gives the same parameters in the same order,
    and update_func gives the same values on each. Parameters without a gradient stay without.
    """
    for parameter in param_list:
        if parameter.grad is not None:  # of no engine
            parameter.grad.copy_(update_func(parameter.grad, parameter))
            continue
        gradient = safe_get_full_grad(parameter)
        if gradient is not None:
            safe_set_full_grad(parameter, update_func(gradient, parameter))
