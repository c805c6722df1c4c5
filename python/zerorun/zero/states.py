"""fp32 values, gradients and optimizer states of single parameters, at any stage.

``full`` functions are collective and deal in whole tensors in the parameter's shape; ``local`` ones
deal in this rank's elements, flat. Getters give None for what does not exist: a frozen parameter, a
state before the first step, a gradient between a step and the next backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from zerorun.engine import ZeroEngine
    from zerorun.state_access import StateAccess

_MASTER = "fp32_param"
_GRAD = "grad"


def engine_of(parameter: nn.Parameter) -> ZeroEngine | None:
    """The engine that a parameter belongs to."""
    reference = getattr(parameter, "_zerorun_engine", None)
    return None if reference is None else reference()


def _access(parameter: nn.Parameter) -> StateAccess | None:
    engine = engine_of(parameter)
    return None if engine is None else engine.states


def safe_get_full_fp32_param(param: nn.Parameter) -> torch.Tensor | None:
    """The whole fp32 master copy. Collective."""
    access = _access(param)
    return None if access is None else access.get_full(param, _MASTER)


def safe_set_full_fp32_param(param: nn.Parameter, value: torch.Tensor) -> None:
    """New values of the master copy and of the parameter, on all ranks. Collective."""
    access = _access(param)
    if access is not None:
        access.set_full(param, _MASTER, value)


def safe_get_full_grad(param: nn.Parameter) -> torch.Tensor | None:
    """The averaged gradient, between backward and step. Collective."""
    access = _access(param)
    return None if access is None else access.get_full(param, _GRAD)


def safe_set_full_grad(param: nn.Parameter, value: torch.Tensor) -> None:
    """Replaces the averaged gradient, between backward and step. Collective."""
    access = _access(param)
    if access is not None:
        access.set_full(param, _GRAD, value)


def safe_get_full_optimizer_state(param: nn.Parameter, optim_state_key: str) -> torch.Tensor | None:
    """A whole optimizer state ("exp_avg", ...). Collective."""
    access = _access(param)
    return None if access is None else access.get_full(param, optim_state_key)


def safe_set_full_optimizer_state(
    param: nn.Parameter, value: torch.Tensor, optim_state_key: str
) -> None:
    """Replaces an optimizer state. Collective."""
    access = _access(param)
    if access is not None:
        access.set_full(param, optim_state_key, value)


def safe_get_local_fp32_param(param: nn.Parameter) -> torch.Tensor | None:
    """This rank's elements of the master copy, flat."""
    access = _access(param)
    return None if access is None else access.get_local(param, _MASTER)


def safe_set_local_fp32_param(param: nn.Parameter, value: torch.Tensor) -> None:
    """Replaces this rank's elements; every rank must set its own. Collective."""
    access = _access(param)
    if access is not None:
        access.set_local(param, _MASTER, value)


def safe_get_local_grad(param: nn.Parameter) -> torch.Tensor | None:
    """This rank's elements of the averaged gradient, flat. Collective."""
    access = _access(param)
    return None if access is None else access.get_local(param, _GRAD)


def safe_set_local_grad(param: nn.Parameter, value: torch.Tensor) -> None:
    """Replaces this rank's elements of the averaged gradient. Collective."""
    access = _access(param)
    if access is not None:
        access.set_local(param, _GRAD, value)


def safe_get_local_optimizer_state(
    param: nn.Parameter, optim_state_key: str
) -> torch.Tensor | None:
    """This rank's elements of an optimizer state, flat."""
    access = _access(param)
    return None if access is None else access.get_local(param, optim_state_key)


def safe_set_local_optimizer_state(
    param: nn.Parameter, value: torch.Tensor, optim_state_key: str
) -> None:
    """Replaces this rank's elements of an optimizer state."""
    access = _access(param)
    if access is not None:
        access.set_local(param, optim_state_key, value)
