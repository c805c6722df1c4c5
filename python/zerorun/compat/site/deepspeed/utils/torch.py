"""Questions about PyTorch's version, which is new enough for all of DeepSpeed's."""

from collections.abc import Callable
from typing import Any

import torch


def required_torch_version(
    min_version: str | float | None = None, max_version: str | float | None = None
) -> bool:
    """True if PyTorch's version is within bounds that are included."""
    if not (min_version or max_version):
        raise AssertionError("Must provide a min_version or max_version argument")
    reached = not min_version or torch.__version__ >= str(min_version)
    return reached and (not max_version or torch.__version__ <= str(max_version))


def is_functorch_transforming() -> bool:
    """True if the caller runs inside torch.func.grad, vmap or the like."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def register_grad_hook(param: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Any:
    """Calls `hook` when a backward pass has added to the parameter's gradient."""
    return param.register_post_accumulate_grad_hook(hook)


def jit_script_compat(fn: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(fn)
