"""Names of a model's parameters and buffers as they are without torch.compile."""

from __future__ import annotations

COMPILED = "_orig_mod"  # where torch.compile(module) keeps the module


def plain_name(name: str) -> str:
    """The name without the wrappers that torch.compile puts around modules, so that checkpoints of
    compiled models and of others are the same."""
    if COMPILED not in name:
        return name
    return ".".join(part for part in name.split(".") if part != COMPILED)
