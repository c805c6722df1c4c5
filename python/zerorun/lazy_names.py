"""Packages that import what they name when somebody asks for it."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package; `modules`: its names by the module of zerorun that has
    them."""
    places = {name: module for module, names in modules.items() for name in names.split()}

    def __getattr__(name: str) -> Any:  # noqa: N807 - it becomes the package's
        if name not in places:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(importlib.import_module(f"zerorun.{places[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__
