"""What is imported late: names of packages, when somebody asks for them, and modules of PyTorch's,
when the program imports them."""

import importlib.util
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


def when_imported(name: str, act: Callable[[Any], None]) -> None:
    """Calls `act` with the module now or, where importing it here would take a second, once the
    program has."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, act))  # type: ignore[arg-type]


class _Finder:
    """Waits for the module to be imported."""

    def __init__(self, name: str, act: Callable[[Any], None]) -> None:
        self._name, self._act = name, act
        self._asks = False  # the other finders

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        if name != self._name or self._asks:
            return None
        self._asks = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asks = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self._act(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
