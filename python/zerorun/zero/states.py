"""fp32 values, gradients and optimizer states of single parameters, at any stage.

``full`` functions are collective and work on whole tensors in the parameter's shape; ``local`` ones
work on this rank's elements, flat. Getters return None where there is no such state: of a frozen
parameter, before the first step, and for a gradient between a step and the next backward. Setters
raise ConfigError for these, for values of another size and for parameters of no engine, on every
rank and before anything changes.
"""

from __future__ import annotations

import torch
from torch import nn

from zerorun import _C
from zerorun.shards.shards import shards_of
from zerorun.shards.state_access import StateAccess

_MASTER = "fp32_param"
_GRAD = "grad"


def _get(parameter: nn.Parameter, name: str, full: bool) -> torch.Tensor | None:
    shards = shards_of(parameter)
    if shards is None:
        return None
    states = StateAccess(shards)
    return states.get_full(parameter, name) if full else states.get_local(parameter, name)


def _set(parameter: nn.Parameter, name: str, value: torch.Tensor, full: bool) -> None:
    shards = shards_of(parameter)
    if shards is None:
        raise _C.ConfigError(
            f"setting {name}: a parameter of shape {tuple(parameter.shape)} belongs to no engine; "
            "give one of a model that initialize() has taken and that is not destroyed"
        )
    states = StateAccess(shards)
    if full:
        states.set_full(parameter, name, value)
    else:
        states.set_local(parameter, name, value)


def safe_get_full_fp32_param(param: nn.Parameter) -> torch.Tensor | None:
    """The whole fp32 master copy. Collective."""
    return _get(param, _MASTER, full=True)


def safe_set_full_fp32_param(param: nn.Parameter, value: torch.Tensor) -> None:
    """New values of the master copy and of the parameter, on all ranks. Collective."""
    _set(param, _MASTER, value, full=True)


def safe_get_full_grad(param: nn.Parameter) -> torch.Tensor | None:
    """The averaged gradient, between backward and step. Collective."""
    return _get(param, _GRAD, full=True)


def safe_set_full_grad(param: nn.Parameter, value: torch.Tensor) -> None:
    """Replaces the averaged gradient, between backward and step. Collective."""
    _set(param, _GRAD, value, full=True)


def safe_get_full_optimizer_state(param: nn.Parameter, optim_state_key: str) -> torch.Tensor | None:
    """A whole optimizer state ("exp_avg", ...). Collective."""
    return _get(param, optim_state_key, full=True)


def safe_set_full_optimizer_state(
    param: nn.Parameter, value: torch.Tensor, optim_state_key: str
) -> None:
    """Replaces an optimizer state. Collective."""
    _set(param, optim_state_key, value, full=True)


def safe_get_local_fp32_param(param: nn.Parameter) -> torch.Tensor | None:
    """This rank's elements of the master copy, flat."""
    return _get(param, _MASTER, full=False)


def safe_set_local_fp32_param(param: nn.Parameter, value: torch.Tensor) -> None:
    """Replaces this rank's elements; every rank must set its own. Collective."""
    _set(param, _MASTER, value, full=False)


def safe_get_local_grad(param: nn.Parameter) -> torch.Tensor | None:
    """This rank's elements of the averaged gradient, flat. Collective."""
    return _get(param, _GRAD, full=False)


def safe_set_local_grad(param: nn.Parameter, value: torch.Tensor) -> None:
    """Replaces this rank's elements of the averaged gradient. Collective."""
    _set(param, _GRAD, value, full=False)


def safe_get_local_optimizer_state(
    param: nn.Parameter, optim_state_key: str
) -> torch.Tensor | None:
    """This rank's elements of an optimizer state, flat."""
    return _get(param, optim_state_key, full=False)


def safe_set_local_optimizer_state(
    param: nn.Parameter, value: torch.Tensor, optim_state_key: str
) -> None:
    """Replaces this rank's elements of an optimizer state; every rank must set its own.
    Collective."""
    _set(param, optim_state_key, value, full=False)
