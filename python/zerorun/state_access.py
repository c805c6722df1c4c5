"""Reading and writing what an engine holds of one parameter, on this rank or on all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from zerorun import _C
from zerorun.parameter_memory import tensor_of

if TYPE_CHECKING:
    from zerorun.engine import ZeroEngine

__all__ = ["StateAccess"]


class StateAccess:
    """States by name: "fp32_param", "grad", and the optimizer's ("exp_avg", ...)."""

    def __init__(self, engine: ZeroEngine) -> None:
        self._engine = engine

    def get_full(self, parameter: nn.Parameter, name: str) -> torch.Tensor | None:
        if not self._prepare(parameter, name):
            return None
        shape = self._engine.layout.shapes[parameter]
        full = torch.zeros(shape.numel(), dtype=torch.float32)
        found = 0
        for interval, values in self._parts(parameter, name):
            full[interval.begin : interval.begin + interval.numel] = values
            found += interval.numel
        # Every element is on one rank.
        count = torch.tensor([found])
        label = f"{name} of {self._engine.layout.names[parameter]}"
        self._engine.communicator.all_reduce(count, "sum", label)
        if count.item() != shape.numel():
            return None
        self._engine.communicator.all_reduce(full, "sum", label)
        if name == "grad":
            full *= self._average()
        return full.view(shape)

    def set_full(self, parameter: nn.Parameter, name: str, value: torch.Tensor) -> None:
        shape = self._engine.layout.shapes[parameter]
        if value.shape != shape:
            raise _C.ConfigError(
                f"{name} of {self._engine.layout.names[parameter]}: got shape "
                f"{tuple(value.shape)}, expected {tuple(shape)}"
            )
        flat = value.detach().flatten().float()
        if self._prepare(parameter, name, setting=True):
            for interval, target in self._parts(parameter, name):
                part = flat[interval.begin : interval.begin + interval.numel]
                target.copy_(part / self._average() if name == "grad" else part)
        self._publish(name)

    def get_local(self, parameter: nn.Parameter, name: str) -> torch.Tensor | None:
        if not self._prepare(parameter, name):
            return None
        parts = [values.float() for _, values in self._parts(parameter, name)]
        local = torch.cat(parts) if parts else torch.empty(0)
        return local * self._average() if name == "grad" else local

    def set_local(self, parameter: nn.Parameter, name: str, value: torch.Tensor) -> None:
        if self._prepare(parameter, name, setting=True):
            flat, at = value.detach().flatten().float(), 0
            for interval, target in self._parts(parameter, name):
                part = flat[at : at + interval.numel]
                target.copy_(part / self._average() if name == "grad" else part)
                at += interval.numel
            if at != flat.numel():
                raise _C.ConfigError(
                    f"{name} of {self._engine.layout.names[parameter]}: got {flat.numel()} "
                    f"elements, this rank holds {at}"
                )
        self._publish(name)

    def _publish(self, name: str) -> None:
        """Copies of what was set, on other ranks (stage 0) or in a file, follow."""
        if name != "grad":
            self._engine.core.publish_masters()

    def _prepare(self, parameter: nn.Parameter, name: str, setting: bool = False) -> bool:
        """Whether the state exists, on all ranks alike. Collective for gradients."""
        trainable = self._engine.layout.is_trainable(parameter)
        if setting and name == "grad" and self._engine.zero_optimization_stage() == 0:
            raise _C.ConfigError("gradients can be set from stage 1 on, this engine is at stage 0")
        if name == "grad":
            return trainable and self._engine.finish_reduction()
        return trainable or name == "fp32_param"

    def _average(self) -> float:
        return self._engine.core.gradient_average

    def _parts(
        self, parameter: nn.Parameter, name: str
    ) -> Iterator[tuple[_C.StateInterval, torch.Tensor]]:
        """This rank's intervals with their values, views of the engine's memory."""
        core = self._engine.core
        optimizer = self._engine.optimizer
        for interval in core.state_intervals(self._engine.layout.ids[parameter]):
            if name == "fp32_param":
                held = interval.param if interval.master is None else interval.master
                yield interval, tensor_of(held)
            elif name == "grad":
                yield interval, tensor_of(interval.grad)
            elif name in (names := core.state_names(interval.parameter)):
                yield interval, tensor_of(interval.states[names.index(name)])
            elif optimizer is not None and optimizer.rule.external:
                state = optimizer.shard_state(interval.parameter, interval.begin)
                if isinstance(state.get(name), torch.Tensor):
                    yield interval, state[name].view(-1)
