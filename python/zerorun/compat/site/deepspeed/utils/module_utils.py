"""Modules by their dotted names."""

from typing import Any

from torch import nn


def recursive_getattr(model: nn.Module, module_name: str) -> Any:
    found: Any = model
    for name in module_name.split("."):
        found = getattr(found, name)
    return found


def recursive_setattr(model: nn.Module, module_name: str, module: Any) -> None:
    parent, _, name = module_name.rpartition(".")
    setattr(recursive_getattr(model, parent) if parent else model, name, module)
