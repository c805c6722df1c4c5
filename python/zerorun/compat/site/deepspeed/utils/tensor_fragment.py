"""Masters, gradients and optimizer states of parameters."""

# ruff: noqa: F403, F405 - scripts import these names from here

from collections.abc import Callable, Iterable

import torch
from torch import nn
from zerorun import zero
from zerorun.zero import *


def safe_set_full_grad(param: nn.Parameter, value: torch.Tensor) -> None:
    """Replaces the averaged gradient, between backward and step. Collective."""
    if param.grad is not None and param.grad.shape == value.shape:  # stage 0, or of no engine
        param.grad.copy_(value)
    else:
        zero.safe_set_full_grad(param, value)


def safe_update_full_grad_vectorized(
    param_list: Iterable[nn.Parameter],
    update_func: Callable[[torch.Tensor, nn.Parameter], torch.Tensor],
) -> None:
    """Replaces the averaged gradient of each parameter by ``update_func(gradient, parameter)``.

    Between backward and step. Collective: every rank gives the same parameters in the same order,
    and update_func gives the same values on each. Parameters without a gradient stay without.
    """
    for parameter in param_list:
        gradient = safe_get_full_grad(parameter) if parameter.grad is None else parameter.grad
        if gradient is not None:
            safe_set_full_grad(parameter, update_func(gradient, parameter))
