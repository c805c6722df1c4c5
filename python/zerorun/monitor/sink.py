"""Monitor: a place where scalars go."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from zerorun import _C

Event = tuple[str, Any, int]  # name, value, and the samples that training has seen


class Monitor(ABC):
    """A place where scalars go: made of its section of the configuration, on rank 0."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    @abstractmethod
    def write_events(self, event_list: Iterable[Event]) -> None: ...

    def close(self) -> None:  # noqa: B027 - most have nothing left
        """Writes what is left."""


def package(section: str, name: str, install: str | None = None) -> Any:
    """The module that a section needs. ConfigError that says what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _C.ConfigError(
            f"/{section}/enabled needs the Python package {name.partition('.')[0]}, which cannot "
            f"be imported ({error}): pip install '{install or name.partition('.')[0]}', or set "
            f"/{section}/enabled to false"
        ) from error
