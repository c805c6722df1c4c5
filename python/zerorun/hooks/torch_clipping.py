"""The places in torch.nn.utils.clip_grad_norm_ and clip_grad_value_ where engines clip."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.utils import clip_grad

__all__ = ["Clip", "EngineClipping", "serve_clipping", "warn_that_nothing_changes"]

# What clip_grad_norm_ calls, by whatever name that was imported: the first makes the norm of the
# gradients that torch sees, the second clips by it, and the norm is what the caller gets.
_NORM, _CLIP = "_get_total_norm", "_clip_grads_with_norm_"
_ATTRIBUTE = "_zerorun_norm"


@dataclass
class Clip:
    """The arguments of one call of clip_grad_norm_."""

    max_norm: float
    norm_type: float
    error_if_nonfinite: bool

    def check(self, norm: torch.Tensor) -> None:
        if self.error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(
                f"clip_grad_norm_: the norm of order {self.norm_type} is {norm.item()}, which "
                "error_if_nonfinite=True makes an error"
            )


class EngineClipping(Protocol):
    """Clips what torch does not see: the gradients that engines keep."""

    def by_norm(self, parameters: list[Any], clip: Clip) -> torch.Tensor | None:
        """The norm of the parameters' gradients; None if no engine has gradients of theirs."""

    def by_value(self, parameters: list[Any], limit: float) -> bool:
        """False if no engine trains any of the parameters."""

    def by_given_norm(self, parameters: list[Any]) -> None:
        """Refuses to clip gradients by a norm that was made without them."""


def warn_that_nothing_changes(function: str) -> None:
    warnings.warn(
        f"{function} changes nothing: the gradients of an engine's parameters are the "
        "engine's. gradient_clipping in its configuration clips them in step(), and "
        "get_global_grad_norm() is their norm",
        stacklevel=6,
    )


def _listed(parameters: Any) -> list[Any]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


@functools.cache
def serve_clipping(engines: EngineClipping) -> None:
    """From the first call on, torch's clip_grad_norm_ also lets `engines` clip, and returns the
    norm of all gradients; what torch itself sees is clipped by the same norm. So does
    clip_grad_value_."""
    _serve_norms(engines)
    _serve_values(engines)


def _serve_norms(engines: EngineClipping) -> None:
    make_norm = getattr(clip_grad, _NORM, None)
    clip_by = getattr(clip_grad, _CLIP, None)
    if make_norm is None or clip_by is None:  # another PyTorch
        return

    @functools.wraps(make_norm)
    def total_norm(
        tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, *args: Any
    ) -> Any:
        norm = make_norm(tensors, norm_type, error_if_nonfinite, *args)
        setattr(norm, _ATTRIBUTE, (float(norm_type), error_if_nonfinite))
        return norm

    @functools.wraps(clip_by)
    def clip(parameters: Any, max_norm: float, norm: Any, foreach: bool | None = None) -> None:
        given = _listed(parameters)
        arguments = getattr(norm, _ATTRIBUTE, None)
        if arguments is not None:
            found = engines.by_norm(given, Clip(float(max_norm), *arguments))
            if found is not None:
                norm.copy_(found)
        clip_by(given, max_norm, norm, foreach)

    setattr(clip_grad, _NORM, total_norm)
    setattr(clip_grad, _CLIP, clip)

    def clip_directly(
        parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kwargs: Any
    ) -> None:
        given = _listed(parameters)
        if not hasattr(total_norm, _ATTRIBUTE):  # as clip_grad_norm_ has it
            engines.by_given_norm(given)
        wrapped(given, max_norm, total_norm, *args, **kwargs)

    wrapped = _replace_wrapped(clip_by, clip_directly)


def _replace_wrapped(wrapper: Callable[..., Any], function: Callable[..., Any]) -> Any:
    """Puts `function` in place of the one that a wrapper of torch's calls, and returns that one.
    So it is called by whatever name the wrapper was imported. None: another PyTorch."""
    wrapped = getattr(wrapper, "__wrapped__", None)
    for cell in wrapper.__closure__ or ():
        if wrapped is not None and cell.cell_contents is wrapped:
            cell.cell_contents = functools.wraps(wrapped)(function)
            return wrapped
    return None


def _serve_values(engines: EngineClipping) -> None:
    def clip(parameters: Any, clip_value: float, *args: Any, **kwargs: Any) -> None:
        given = _listed(parameters)
        served = engines.by_value(given, float(clip_value))
        if not served or any(parameter.grad is not None for parameter in given):
            wrapped(given, clip_value, *args, **kwargs)

    wrapped = _replace_wrapped(clip_grad.clip_grad_value_, clip)
