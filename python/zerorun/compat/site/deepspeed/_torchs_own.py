"""Optimizers and schedules of torch's that a configuration names."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from zerorun import config as configuration

_PLACES = {
    "optimizer": (torch.optim, torch.optim.Optimizer),
    "scheduler": (torch.optim.lr_scheduler, torch.optim.lr_scheduler.LRScheduler),
}


@functools.cache
def _known(section: str) -> set[str]:
    """The names in lower case that zerorun has its own of."""
    kinds = configuration.schema()["properties"][section]["properties"]["type"]["anyOf"]
    return {name.lower() for kind in kinds for name in kind.get("enum", ())}


def take_torchs_own(settings: dict[str, Any], section: str) -> Callable[..., Any] | None:
    """A maker of what the section names, where that is a class of torch's and no name of zerorun's:
    the section leaves the settings then. None otherwise."""
    given = settings.get(section)
    name = given.get("type") if isinstance(given, dict) else None
    place, kind = _PLACES[section]
    found = getattr(place, name, None) if isinstance(name, str) else None
    if not (isinstance(found, type) and issubclass(found, kind)) or found is kind:
        return None
    if name.lower() in _known(section):
        return None
    del settings[section]
    params = {key: value for key, value in (given.get("params") or {}).items() if value != "auto"}
    return functools.partial(found, **params)
