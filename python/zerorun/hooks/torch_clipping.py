"""The places in torch.nn.utils.clip_grad_norm_ and clip_grad_value_ where engines clip."""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.utils import clip_grad

from zerorun import _C
from zerorun.program_warning import warn

_BY_NORM = "_clip_grads_with_norm_"  # from 2.6 on; also what clip_grad_norm_ calls


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
    warn(
        f"{function} changes nothing: the gradients of an engine's parameters are the "
        "engine's. gradient_clipping in its configuration clips them in step(), and "
        "get_global_grad_norm() is their norm"
    )


def _listed(parameters: Any) -> list[Any]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


@functools.cache
def serve_clipping(engines: EngineClipping, torchs: Any = clip_grad) -> None:
    """From the first call on, torch's functions also clip the gradients that `engines` keep, by
    whatever name a program has imported them. `torchs`: the module that has them.

    Raises ConfigError where they are made in another way than those of torch 2.4 to 2.13.
    """

    def clip_norm(
        parameters: Any,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        given = _listed(parameters)
        clip = Clip(float(max_norm), float(norm_type), error_if_nonfinite)
        found = engines.by_norm(given, clip)
        if found is not None:
            return found
        seen = _with_gradients(given) if given else parameters  # torch warns of no parameters
        return norm(seen, max_norm, norm_type, error_if_nonfinite, *args, **kwargs)

    def clip_by_norm(
        parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kwargs: Any
    ) -> None:
        given = _listed(parameters)
        engines.by_given_norm(given)
        by_norm(given, max_norm, total_norm, *args, **kwargs)

    def clip_value(parameters: Any, clip_value: float, *args: Any, **kwargs: Any) -> None:
        given = _listed(parameters)
        served = engines.by_value(given, float(clip_value))
        if not served or _with_gradients(given):
            value(given, clip_value, *args, **kwargs)

    functions: dict[str, Any] = {"clip_grad_norm_": clip_norm, "clip_grad_value_": clip_value}
    if hasattr(torchs, _BY_NORM):
        functions[_BY_NORM] = clip_by_norm
    cells = {name: _wrapped_by(torchs, name) for name in functions}  # all of them, or none
    norm, value = cells["clip_grad_norm_"].cell_contents, cells["clip_grad_value_"].cell_contents
    by_norm: Any = cells[_BY_NORM].cell_contents if _BY_NORM in cells else None
    for name, cell in cells.items():
        cell.cell_contents = functools.wraps(cell.cell_contents)(functions[name])


def _with_gradients(parameters: list[Any]) -> list[Any]:
    """Those of which torch sees a gradient: it clips no others."""
    return [parameter for parameter in parameters if parameter.grad is not None]


def _wrapped_by(module: Any, name: str) -> types.CellType:
    """Where a wrapper of torch's has the function that it calls."""
    wrapper = getattr(module, name, None)
    wrapped = getattr(wrapper, "__wrapped__", None)
    for cell in getattr(wrapper, "__closure__", None) or ():
        if wrapped is not None and cell.cell_contents is wrapped:
            return cell
    raise _C.ConfigError(
        f"torch.nn.utils.{name}, of {getattr(wrapper, '__module__', None)}, is not made as in "
        f"PyTorch 2.4 to 2.13 (this is {torch.__version__}), so it would not clip the gradients "
        "that an engine keeps: use one of these versions, and do not replace the function"
    )
