"""torch's batch and instance norm for modules with 16-bit parameters beside fp32 statistics."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import nn

_HALVES = (torch.bfloat16, torch.float16)


def serve_mixed_norms(model: nn.Module, param_dtype: str) -> None:
    """Lets the norms of a model in 16 bits compute, whose running statistics are fp32.

    torch takes a 16-bit input with statistics and parameters in fp32, but refuses 16-bit parameters
    beside such statistics. From the first such model on, its two functions compute with the fp32
    values of these parameters. The modules are as they were, so copies of them, and a model whose
    engine has ended, compute in the same way; so do forwards of other libraries that call torch's
    functions themselves.
    """
    if param_dtype != "fp32" and any(b.dtype == torch.float32 for b in model.buffers()):
        _replace_functions()


@functools.cache
def _replace_functions() -> None:
    for name in ("batch_norm", "instance_norm"):
        original = getattr(torch, name)
        replacement = _with_fp32_parameters(original)
        setattr(torch, name, replacement)
        _name_for_scripts(replacement, original)


def _with_fp32_parameters(original: Any) -> Any:
    @functools.wraps(original)
    def norm(
        input: Any,  # noqa: A002 - torch's name
        weight: Any,
        bias: Any,
        running_mean: Any,
        running_var: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if running_mean is not None and running_mean.dtype == torch.float32:
            weight, bias = _widened(weight), _widened(bias)
        return original(input, weight, bias, running_mean, running_var, *args, **kwargs)

    return norm


def _widened(parameter: torch.Tensor | None) -> torch.Tensor | None:
    return parameter.float() if parameter is not None and parameter.dtype in _HALVES else parameter


def _name_for_scripts(replacement: Any, original: Any) -> None:
    """torch.jit.script knows torch's functions by what they are: it takes this for that one."""
    builtins: Any = importlib.import_module("torch.jit._builtins")
    builtins._register_builtin(replacement, builtins._find_builtin(original))
