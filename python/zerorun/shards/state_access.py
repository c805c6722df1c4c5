"""Reading and writing the states of one parameter, on this rank or on all."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import all_or_none, reduced
from zerorun.hooks.parameter_memory import state_names_of, states_of, tensor_of
from zerorun.model.tensors import like, local_of
from zerorun.shards.part_of_state import PartOfState
from zerorun.shards.shards import Shards

# This rank's intervals of a parameter, with views of their values in the engine's memory.
_Parts = list[tuple[_C.StateInterval, torch.Tensor]]


class StateAccess:
    """States by name: "fp32_param", "grad", and the optimizer's ("exp_avg", ...)."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def get_full(self, parameter: nn.Parameter, name: str) -> torch.Tensor | None:
        if not self._prepare(parameter, name):
            return None
        shape = self._shards.layout.shapes[parameter]
        full = torch.zeros(shape.numel(), dtype=torch.float32, device=self._shards.device)
        found = 0
        for interval, values in self._parts(parameter, name):
            if interval.owned:
                full[interval.begin : interval.begin + interval.numel] = values
                found += interval.numel
        if self._found(parameter, name, found) != shape.numel():
            return None
        label = f"{name} of {self._shards.layout.names[parameter]}"
        self._shards.communicator_of(parameter).all_reduce(full, "sum", label)
        if name == "grad":
            full *= self._average()
        return like(parameter, full.view(shape))

    def set_full(self, parameter: nn.Parameter, name: str, value: torch.Tensor) -> None:
        self._shards.take_replaced_states()
        shape = self._shards.layout.shapes[parameter]
        parts = self._parts_to_set(parameter, name)
        with all_or_none(self._shards.communicator, f"set {name}"):
            value = local_of(self._tensor(parameter, name, value))
            if value.shape != shape:
                raise self._error(
                    parameter, name, f"got shape {tuple(value.shape)}, expected {tuple(shape)}"
                )
        if name == "grad" and self._shards.stage == 0:
            self.set_whole_gradients([(parameter, value)])
            return
        flat = value.detach().flatten().float()
        self._write(name, parts, [flat[i.begin : i.begin + i.numel] for i, _ in parts])

    def set_all(self, values: Iterable[tuple[nn.Parameter, str, torch.Tensor]]) -> None:
        """Whole states of many parameters, which exist and whose shapes fit. Collective."""
        self._shards.take_replaced_states()
        self._shards.writes.take()
        for parameter, name, value in values:
            flat = local_of(value).flatten().float()
            parts = list(self._parts(parameter, name))
            self._copy(name, parts, [flat[i.begin : i.begin + i.numel] for i, _ in parts])
            self._shards.core.accept_changes()  # in files: one at a time is in memory
        self._shards.core.refresh_from_masters()

    def get_local(self, parameter: nn.Parameter, name: str) -> torch.Tensor | None:
        if not self._prepare(parameter, name):
            return None
        device = self._shards.device
        parts = [values.to(device, torch.float32) for _, values in self._parts(parameter, name)]
        local = torch.cat(parts) if parts else torch.empty(0, dtype=torch.float32, device=device)
        return local * self._average() if name == "grad" else local

    def get_kept(self, parameter: nn.Parameter) -> dict[str, Any]:
        """All optimizer states by name, this rank's elements: in the parameter's shape if the rank
        keeps all of it, else flat. Those that are copies cannot be changed, nor at stage 0 those of
        which other ranks have copies. Not collective."""
        core, shape = self._shards.core, self._shards.layout.shapes[parameter]
        states = self._numbers(parameter)
        ranks = self._shards.communicator_of(parameter).world_size
        copied = self._shards.stage == 0 and self._shards.torch_states is None and ranks > 1
        for name in self._names(parameter):
            found = list(self._parts(parameter, name))
            parts = [values for _, values in found]
            near = [part.to(parts[0].device) for part in parts]  # some rest on the host
            kept = parts[0] if len(parts) == 1 else torch.cat(near or [self._none_of(name)])
            if copied or len(parts) > 1 or any(self._is_8bit(i, name) for i, _ in found):
                kept = kept.as_subclass(PartOfState)
            states[name] = kept.view(shape) if kept.numel() == shape.numel() else kept
        if self._shards.torch_states is None:
            states["step"] = core.step_count
        return states

    def _none_of(self, name: str) -> torch.Tensor:
        """No elements of a state, in the dtype that this rank has of other parameters."""
        core = self._shards.core
        for interval in core.state_intervals():
            states = {} if interval.grad is None else states_of(core, interval)
            if name in states and not self._is_8bit(interval, name):
                return states[name].new_empty(0)
        return torch.empty(0, dtype=torch.float32, device="cpu")

    def _names(self, parameter: nn.Parameter) -> list[str]:
        """The names of states with an element for each of the parameter's."""
        index = self._shards.layout.ids[parameter]
        if self._shards.torch_states is None:
            return state_names_of(self._shards.core, index)
        return sorted(
            {
                name
                for interval in self._shards.core.state_intervals(index)
                for name, value in self._shards.torch_states.get(index, interval.begin).items()
                if isinstance(value, torch.Tensor) and value.shape == (interval.numel,)
            }
        )

    def _numbers(self, parameter: nn.Parameter) -> dict[str, Any]:
        """The other states of a torch optimizer, such as its count of steps."""
        index, states = self._shards.layout.ids[parameter], self._shards.torch_states
        intervals = self._shards.core.state_intervals(index)
        if states is None or not intervals:
            return {}
        found = states.get(index, intervals[0].begin)
        names = self._names(parameter)
        return {name: value for name, value in found.items() if name not in names}

    def set_local(self, parameter: nn.Parameter, name: str, value: torch.Tensor) -> None:
        if name == "grad" and self._shards.stage == 0:
            raise _C.ConfigError(
                "a rank's elements of a gradient can be set from stage 1 on; at stage 0 every rank "
                "stores all: use safe_set_full_grad"
            )
        parts = self._parts_to_set(parameter, name)
        numels = [interval.numel for interval, _ in parts]
        with all_or_none(self._shards.communicator, f"set {name}"):
            value = self._tensor(parameter, name, value)
            if value.numel() != sum(numels):
                raise self._error(
                    parameter, name, f"got {value.numel()} elements, this rank holds {sum(numels)}"
                )
        self._write(name, parts, value.detach().flatten().float().split(numels))

    def get_whole_gradient(self, parameter: nn.Parameter) -> torch.Tensor:
        """A copy of the averaged gradient at stage 0, where every rank stores all. After reduction;
        not collective."""
        return self._whole_gradient(parameter).float() * self._average()

    def set_whole_gradients(self, values: Iterable[tuple[nn.Parameter, torch.Tensor]]) -> None:
        """Replaces them. The same values on every rank, which is not compared."""
        for parameter, value in values:
            self._whole_gradient(parameter).copy_(value.detach().float() / self._average())
        self._shards.core.accept_gradients()

    def owned_gradients(self, parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
        """The engine's own sums, not yet averaged, of which every element is one rank's. After
        reduction; not collective."""
        parts = [part for parameter in parameters for part in self._parts(parameter, "grad")]
        return [values for interval, values in parts if interval.owned]

    def scale_gradients(self, parameters: Iterable[nn.Parameter], factor: float) -> None:
        """Multiplies them. The same on every rank, which is not compared."""
        for values in self._stored_gradients(parameters):
            values.mul_(factor)
        self._shards.core.accept_gradients()

    def limit_gradients(self, parameters: Iterable[nn.Parameter], limit: float) -> None:
        """Limits elements that are finite to -`limit` to `limit` of the average. The same on every
        rank, which is not compared."""
        limit /= self._average()
        for values in self._stored_gradients(parameters):
            limited = values.clamp(-limit, limit)
            values.copy_(torch.where(values.isinf(), values, limited))
        self._shards.core.accept_gradients()

    def without_gradient(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        """Those to whose gradient no backward of the batch has added, on any rank: all zeros. After
        reduction. Collective unless there are none."""
        if not parameters or self._shards.core.phase == "idle":
            return parameters
        holders = self._shards.layout.ranks_of  # an expert is not on all ranks
        kept = []
        for which in sorted({holders.get(parameter, 0) for parameter in parameters}):
            own = [p for p in parameters if holders.get(p, 0) == which]
            stored = [self._stored_gradients([parameter]) for parameter in own]
            added = [int(any(values.any() for values in each)) for each in stored]
            found = torch.tensor(added, device="cpu")
            ranks = self._shards.communicator_of(own[0])
            ranks.all_reduce(found, "max", "gradients of frozen parameters")
            kept += [p for p, added in zip(own, found.tolist(), strict=True) if not added]
        return kept

    def _stored_gradients(self, parameters: Iterable[nn.Parameter]) -> Iterator[torch.Tensor]:
        """The engine's own sums, as far as this rank stores them."""
        for parameter in parameters:
            if self._shards.stage == 0:
                yield self._whole_gradient(parameter)
            else:
                yield from (values for _, values in self._parts(parameter, "grad"))

    def _whole_gradient(self, parameter: nn.Parameter) -> torch.Tensor:
        stored = self._shards.core.whole_gradient(self._shards.layout.ids[parameter])
        return tensor_of(stored).view(self._shards.layout.shapes[parameter])

    def keep(
        self, parameters: Sequence[nn.Parameter], step: Callable[[], _C.StepResult]
    ) -> _C.StepResult:
        """Steps, and leaves values and states of `parameters` as they were. Collective.

        The update takes a bucket as a whole, so what it changed of them is put back.
        """
        core = self._shards.core
        before = [[values.clone() for values in self._held(p)] for p in parameters]
        result = step()
        if result.applied:
            for parameter, saved in zip(parameters, before, strict=True):
                for values, old in zip(self._held(parameter), saved, strict=True):
                    values.copy_(old)
            core.refresh_from_masters()
        return result

    def _held(self, parameter: nn.Parameter) -> Iterator[torch.Tensor]:
        """All that this rank holds of a parameter but its gradient."""
        for interval in self._shards.core.state_intervals(self._shards.layout.ids[parameter]):
            yield tensor_of(interval.param if interval.master is None else interval.master)
            yield from map(tensor_of, interval.states)

    def _write(self, name: str, parts: _Parts, values: Iterable[torch.Tensor]) -> None:
        self._copy(name, parts, values)
        if name == "grad":
            self._shards.core.accept_gradients()  # the norm was that of the values before
        else:
            # Updates the copies of the values, on other ranks (stage 0) or in a file.
            self._shards.core.refresh_from_masters()

    def _copy(self, name: str, parts: _Parts, values: Iterable[torch.Tensor]) -> None:
        for (interval, target), part in zip(parts, values, strict=True):
            if self._is_8bit(interval, name):
                for stored, coded in zip(
                    self._codes(interval, name), encode(part, _is_signed(name)), strict=True
                ):
                    stored.copy_(coded)
            else:
                target.copy_(part / self._average() if name == "grad" else part)

    def _tensor(self, parameter: nn.Parameter, name: str, value: object) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            raise self._error(parameter, name, f"got {type(value).__name__}, expected a tensor")
        return value

    def _error(self, parameter: nn.Parameter, name: str, text: str) -> _C.ConfigError:
        return _C.ConfigError(f"{name} of {self._shards.layout.names[parameter]}: {text}")

    def _parts_to_set(self, parameter: nn.Parameter, name: str) -> _Parts:
        """This rank's part of a state that exists. Collective; ConfigError on every rank if not."""
        parts = list(self._parts(parameter, name)) if self._prepare(parameter, name) else []
        owned = sum(interval.numel for interval, _ in parts if interval.owned)
        found = self._found(parameter, name, owned)
        if found != self._shards.layout.shapes[parameter].numel():
            raise self._error(
                parameter,
                name,
                "there is no such state to set: names are those of the optimizer, frozen "
                "parameters have none, and gradients are there between backward and step",
            )
        return parts

    def _found(self, parameter: nn.Parameter, name: str, owned: int) -> int:
        """Elements that all ranks together own; this one `owned`. Collective."""
        label = f"{name} of {self._shards.layout.names[parameter]}"
        return reduced(owned, self._shards.communicator_of(parameter), "sum", label)

    def _prepare(self, parameter: nn.Parameter, name: str) -> bool:
        """True if the state exists, on all ranks alike. Collective for gradients."""
        trainable = self._shards.layout.is_trainable(parameter)
        return trainable and (name != "grad" or self._shards.finish_reduction())

    def _average(self) -> float:
        return self._shards.core.gradient_average

    def _parts(
        self, parameter: nn.Parameter, name: str
    ) -> Iterator[tuple[_C.StateInterval, torch.Tensor]]:
        """This rank's intervals with their values: views of the engine's memory, or a copy of what
        it keeps in 8 bits."""
        core = self._shards.core
        torch_states = self._shards.torch_states
        if name != "grad":
            self._shards.writes.take()
        for interval in core.state_intervals(self._shards.layout.ids[parameter]):
            if name == "fp32_param":
                held = interval.param if interval.master is None else interval.master
                yield interval, tensor_of(held)
            elif name == "grad":
                yield interval, tensor_of(interval.grad)
            elif self._is_8bit(interval, name):
                yield interval, decode(*self._codes(interval, name), _is_signed(name))
            elif name in core.state_names(interval.parameter):
                yield interval, states_of(core, interval)[name]
            elif torch_states is not None:
                value = torch_states.get(interval.parameter, interval.begin).get(name)
                if isinstance(value, torch.Tensor) and value.shape == (interval.numel,):
                    yield interval, value

    def _is_8bit(self, interval: _C.StateInterval, name: str) -> bool:
        return f"{name}_scale" in self._shards.core.state_names(interval.parameter)

    def _codes(self, interval: _C.StateInterval, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """A state's codes and scales, views of the engine's memory."""
        states = states_of(self._shards.core, interval)
        return states[name], states[f"{name}_scale"]


def _is_signed(name: str) -> bool:
    return name != "exp_avg_sq"


# --- optimizer states in 8 bits, as the values of their codes, which device/block8.h defines ---

BLOCK = 256  # elements that share a scale
_SHIFT = 20  # of a float's bits, to those that a code keeps
_LEAST_SCALE = 2.0**-94  # a block with a smaller one is zero


def _offset(signed: bool) -> int:
    return 1016 - (127 if signed else 255)


def _per_element(scales: torch.Tensor, numel: int) -> torch.Tensor:
    return scales.repeat_interleave(BLOCK)[:numel]


def decode(codes: torch.Tensor, scales: torch.Tensor, signed: bool) -> torch.Tensor:
    """The fp32 values of uint8 `codes` (flat), which have one of `scales` per block."""
    whole = codes.to(torch.int32)
    magnitude = whole & 127 if signed else whole
    relative = ((magnitude + _offset(signed)) << _SHIFT).view(torch.float32)
    relative = torch.where(magnitude == 0, 0.0, relative)
    if signed:
        relative = torch.where(whole >= 128, -relative, relative)
    return relative * _per_element(scales, codes.numel())


def encode(values: torch.Tensor, signed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes and scales of fp32 `values` (flat); the reverse of decode() up to rounding."""
    padding = -values.numel() % BLOCK
    blocks = torch.nn.functional.pad(values, (0, padding)).view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1)
    scales = torch.where(scales < _LEAST_SCALE, 0.0, scales)
    scale = _per_element(scales, values.numel())
    bits = (values.abs() * (1.0 / scale)).view(torch.int32)
    rounded = (bits + (1 << (_SHIFT - 1))) >> _SHIFT  # to nearest; a tie away from zero
    codes = (rounded - _offset(signed)).clamp(0 if signed else 1, 127 if signed else 255)
    codes = torch.where((scale == 0) | (values == 0), 0, codes)
    if signed:
        codes = torch.where(torch.signbit(values) & (codes > 0), codes | 128, codes)
    largest = 127 if signed else 255
    codes = torch.where(torch.isfinite(scale), codes, largest)
    return codes.to(torch.uint8), scales
