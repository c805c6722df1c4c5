"""The place in torch.nn.utils.clip_grad_norm_ where engines clip."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils import clip_grad

__all__ = ["Clip", "serve_clipping"]

# What clip_grad_norm_ calls, by whatever name that was imported: the first makes the norm of the
# gradients that torch sees, the second clips by it, and the norm is what the caller gets.
_NORM, _CLIP = "_get_total_norm", "_clip_grads_with_norm_"
_ATTRIBUTE = "_zerorun_norm"


@dataclass
class Clip:
    """The arguments of one call."""

    max_norm: float
    norm_type: float
    error_if_nonfinite: bool

    def check(self, norm: torch.Tensor) -> None:
        if self.error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(
                f"clip_grad_norm_: the norm of order {self.norm_type} is {norm.item()}, which "
                "error_if_nonfinite=True makes an error"
            )

    @staticmethod
    def warn() -> None:
        warnings.warn(
            "clip_grad_norm_ changes nothing: the gradients of an engine's parameters are the "
            "engine's. gradient_clipping in its configuration clips them in step(), and "
            "get_global_grad_norm() is their norm",
            stacklevel=6,
        )


@functools.cache
def serve_clipping(clip_engines: Callable[[list[Any], Clip], torch.Tensor | None]) -> None:
    """From the first call on, torch's clip_grad_norm_ also calls `clip_engines`, and returns the
    norm of all gradients. What torch itself sees is clipped by the same norm."""
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
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        arguments = getattr(norm, _ATTRIBUTE, None)
        if arguments is not None:
            found = clip_engines(given, Clip(float(max_norm), *arguments))
            if found is not None:
                norm.copy_(found)
        clip_by(given, max_norm, norm, foreach)

    setattr(clip_grad, _NORM, total_norm)
    setattr(clip_grad, _CLIP, clip)
