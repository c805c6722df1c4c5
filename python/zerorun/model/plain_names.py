"""Names of a model's parameters and buffers as they are without torch.compile."""

from __future__ import annotations

from torch import nn

__all__ = ["COMPILED", "is_compiled", "plain_name"]

COMPILED = "_orig_mod"  # where torch.compile(module) keeps the module


def plain_name(name: str) -> str:
    """The name without the wrappers that torch.compile puts around modules, so that checkpoints of
    compiled models and of others are the same."""
    if COMPILED not in name:
        return name
    return ".".join(part for part in name.split(".") if part != COMPILED)


def is_compiled(model: nn.Module) -> bool:
    """True if the model or a module of it is compiled."""
    return any(
        module._compiled_call_impl is not None or COMPILED in module._modules
        for module in model.modules()
    )
