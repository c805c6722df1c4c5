"""A module's parameters that are gathered when another module's forward reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from zerorun.model.local_tensor import is_distributed, local_of

__all__ = ["WatchedParameters", "is_empty"]

_EMPTY = torch.Size([0])


def is_empty(parameter: Any) -> bool:
    return parameter.shape == _EMPTY or (
        is_distributed(parameter) and local_of(parameter).shape == _EMPTY
    )


class WatchedParameters(dict[str, Any]):
    """A module's `_parameters`: an empty parameter that another module's forward reads is gathered
    for that forward, without having been registered as external."""

    def __init__(self, parameters: Mapping[str, Any], fetch: Callable[[Any], None]) -> None:
        super().__init__(parameters)
        self._fetch = fetch

    def __getitem__(self, name: str) -> Any:
        parameter = super().__getitem__(name)
        if parameter is not None and is_empty(parameter):
            self._fetch(parameter)
        return parameter

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)
