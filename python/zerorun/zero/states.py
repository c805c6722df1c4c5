"""Access to master parameters, gradients and optimizer states of single parameters, at any stage.

The functions are DeepSpeed's. All tensors are fp32 and, where they are returned, copies on the
engine's device.

- ``full`` functions use whole tensors in the parameter's shape (a DTensor's for one), and are
  collective: a getter all-reduces as many elements, and every rank has the result; a setter takes
  the same value on every rank.
- ``local`` functions use the elements that this rank stores, one-dimensional, in the order of the
  flattened parameter: all of them at stage 0, at stages 1 to 3 those in its shard, which may be
  none.

A getter returns None for a value that does not exist: of a frozen parameter, a state before the
first step, a gradient between a step and the next backward. In these cases, for values of another
size, and for parameters of no engine, a setter raises ConfigError on every rank, before anything
changes.
"""

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
    (states.set_full if full else states.set_local)(parameter, name, value)


def safe_get_full_fp32_param(param: nn.Parameter) -> torch.Tensor | None:
    """Returns the full fp32 master parameter. Collective."""
    return _get(param, _MASTER, full=True)


def safe_set_full_fp32_param(param: nn.Parameter, value: torch.Tensor) -> None:
    """Sets the master parameter and the parameter on all ranks. Collective."""
    _set(param, _MASTER, value, full=True)


def safe_get_full_grad(param: nn.Parameter) -> torch.Tensor | None:
    """Returns the full gradient, averaged over ranks and micro-steps and without the loss scale,
    between backward and step. Collective."""
    return _get(param, _GRAD, full=True)


def safe_set_full_grad(param: nn.Parameter, value: torch.Tensor) -> None:
    """Replaces the averaged gradient, between backward and step; clipping is still to come.
    Collective."""
    _set(param, _GRAD, value, full=True)


def safe_get_full_optimizer_state(param: nn.Parameter, optim_state_key: str) -> torch.Tensor | None:
    """Returns a full optimizer state; `optim_state_key`: "exp_avg", ... Collective."""
    return _get(param, optim_state_key, full=True)


def safe_set_full_optimizer_state(
    param: nn.Parameter, value: torch.Tensor, optim_state_key: str
) -> None:
    """Replaces a full optimizer state. Collective."""
    _set(param, optim_state_key, value, full=True)


def safe_get_local_fp32_param(param: nn.Parameter) -> torch.Tensor | None:
    """Returns this rank's elements of the master parameter, flat."""
    return _get(param, _MASTER, full=False)


def safe_set_local_fp32_param(param: nn.Parameter, value: torch.Tensor) -> None:
    """Replaces this rank's elements of the master. Collective: every rank sets its own."""
    _set(param, _MASTER, value, full=False)


def safe_get_local_grad(param: nn.Parameter) -> torch.Tensor | None:
    """Returns this rank's elements of the averaged gradient, flat. Collective."""
    return _get(param, _GRAD, full=False)


def safe_set_local_grad(param: nn.Parameter, value: torch.Tensor) -> None:
    """Replaces this rank's elements of the averaged gradient. Collective."""
    _set(param, _GRAD, value, full=False)


def safe_get_local_optimizer_state(
    param: nn.Parameter, optim_state_key: str
) -> torch.Tensor | None:
    """Returns this rank's elements of an optimizer state, flat."""
    return _get(param, optim_state_key, full=False)


def safe_set_local_optimizer_state(
    param: nn.Parameter, value: torch.Tensor, optim_state_key: str
) -> None:
    """Replaces this rank's elements of an optimizer state. Collective: every rank sets its own."""
    _set(param, optim_state_key, value, full=False)
