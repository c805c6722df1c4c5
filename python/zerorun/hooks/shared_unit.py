"""A unit of a stage-3 engine, whose parameters come and go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.model.local_tensor import LocalData, is_distributed, place
from zerorun.model.model_layout import ModelLayout
from zerorun.model.units import Unit


class SharedUnit:
    """A unit of an engine: full while acquired, empty for this rank otherwise."""

    def __init__(
        self,
        unit: Unit,
        core: _C.Engine,
        layout: ModelLayout,
        full: Mapping[nn.Parameter, torch.Tensor],
    ) -> None:
        self.name, self.module = unit.name, unit.module
        self.parameters = unit.parameters
        self.full = {parameter: full[parameter] for parameter in unit.parameters}
        self.forwards = 0  # calls of forward that hold it
        self._switch = _C.ParameterSwitch(core, unit.name)
        self.acquire = self._switch.acquire
        self.release = self._switch.release
        self._calls = 0
        self._readers: list[tuple[dict[str, Any], type, type, type]] = []
        sharded = {p: core.is_sharded(layout.ids[p]) for p in unit.parameters}
        self._always_full = [p for p in unit.parameters if not sharded[p]]  # they are small
        self.sharded = any(sharded.values())
        for parameter, values in self.full.items():
            if sharded[parameter]:
                holder = LocalData(parameter) if is_distributed(parameter) else parameter
                self._switch.add(holder, values, values.new_empty(0))

    def place(self) -> None:
        """Points the parameters at the engine's memory; from here on they come and go."""
        for parameter in self._always_full:
            place(parameter, self.full[parameter])
        self.acquire()
        self.release()

    @property
    def available(self) -> bool:
        return self._switch.available

    def add_reader(
        self, parameters: dict[str, Any], watched: type, plain: type, cast: type
    ) -> None:
        """A dictionary with parameters of it, and its class outside of calls, in them, and in those
        under autocast."""
        self._readers.append((parameters, watched, plain, cast))

    def enter(self, autocast: bool) -> None:
        """An acquire by a call, in forward or backward."""
        self.acquire()
        self._calls += 1
        if autocast:
            self.cast_reads()
        elif self._calls == 1:
            for parameters, _, plain, _ in self._readers:
                parameters.__class__ = plain  # type: ignore[assignment]

    def cast_reads(self) -> None:
        """Reads are those under autocast until the calls that hold it have left."""
        for parameters, _, _, cast in self._readers:
            parameters.__class__ = cast  # type: ignore[assignment]

    def leave(self) -> None:
        """Ends one enter."""
        self._calls -= 1
        if self._calls == 0:
            for parameters, watched, _, _ in self._readers:
                parameters.__class__ = watched  # type: ignore[assignment]
        self.release()

    @property
    def entered(self) -> bool:
        """True while a call holds it."""
        return self._calls > 0
