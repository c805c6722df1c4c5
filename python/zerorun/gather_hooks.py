"""Stage 3: module hooks that make parameters full for as long as forward or backward uses them.

A unit is acquired before its module's forward and released after it. For backward, a hook on the
module's outputs acquires it again, and a hook on its inputs releases it: autograd runs the newest
node first, so when the gradient of an input reaches the node that made it, all nodes of the module
are done. A unit that no input ends (embeddings) is released at the end of backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.external import external_parameters
from zerorun.full_memory import BucketMemory, full_parameters
from zerorun.model_layout import ModelLayout
from zerorun.partition import LeftBehind
from zerorun.units import Unit

__all__ = ["GatherHooks", "SharedUnit"]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a module's arguments or results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "__dataclass_fields__"):
        yield from tensors_in(vars(value))


class SharedUnit:
    """A unit of an engine: full while acquired, empty for this rank otherwise."""

    def __init__(
        self,
        unit: Unit,
        core: _C.Engine,
        layout: ModelLayout,
        full: Mapping[nn.Parameter, torch.Tensor],
    ) -> None:
        self.name = unit.name
        self.parameters = unit.parameters
        self.full = {parameter: full[parameter] for parameter in unit.parameters}
        self.forwards = 0  # calls of forward that hold it
        self._switch = _C.ParameterSwitch(core, unit.name)
        self.acquire = self._switch.acquire
        self.release = self._switch.release
        sharded = {p: core.is_sharded(layout.ids[p]) for p in unit.parameters}
        self._always_full = [p for p in unit.parameters if not sharded[p]]  # they are small
        self.sharded = any(sharded.values())
        for parameter, values in self.full.items():
            if sharded[parameter]:
                self._switch.add(parameter, values, values.new_empty(0))

    def place(self) -> None:
        """Points the parameters at the engine's memory; from here on they come and go."""
        for parameter in self._always_full:
            parameter.data = self.full[parameter]
        self.acquire()
        self.release()

    @property
    def available(self) -> bool:
        return self._switch.available


class _Call:
    """One forward of a module, and the backward that belongs to it."""

    __slots__ = ("held", "hooks", "units")

    def __init__(self, units: list[SharedUnit], hooks: GatherHooks) -> None:
        self.units = units  # from `begin` on, the acquired ones
        self.hooks = hooks
        self.held: list[SharedUnit] | None = None  # by backward

    def begin(self) -> None:
        units, self.units = self.units, []
        for unit in units:
            self.add(unit)

    def add(self, unit: SharedUnit) -> None:
        unit.acquire()
        unit.forwards += 1
        self.units.append(unit)

    def end(self) -> None:
        for unit in self.units:
            unit.forwards -= 1
            unit.release()

    def begin_backward(self, _grad: Any = None) -> None:
        if self.held is not None:
            return
        self.held = []
        self.hooks.opened(self)
        for unit in self.units:
            unit.acquire()
            self.held.append(unit)

    def end_backward(self, _grad: Any = None) -> None:
        if self.held is None:
            return
        held, self.held = self.held, None
        for unit in held:
            unit.release()
        self.hooks.closed(self)


def _no_hook(*_args: Any) -> None:
    """Replaces the hook in a copied or pickled module."""


class _Hook(LeftBehind):
    """A module hook that stays behind when the module is copied or pickled."""

    in_copies = staticmethod(_no_hook)

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        self._function, self._arguments = function, arguments

    def __call__(self, *args: Any) -> None:
        self._function(*self._arguments, *args)


class _WatchedParameters(dict[str, Any]):
    """A module's `_parameters`: an empty parameter that another module's forward reads is gathered
    for that forward, without having been registered as external."""

    def __init__(self, parameters: Mapping[str, Any], fetch: Callable[[Any], None]) -> None:
        super().__init__(parameters)
        self._fetch = fetch

    def __getitem__(self, name: str) -> Any:
        parameter = super().__getitem__(name)
        if parameter is not None and parameter.shape == _EMPTY:
            self._fetch(parameter)
        return parameter

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


_EMPTY = torch.Size([0])


class GatherHooks:
    """The hooks of one stage-3 engine on its model."""

    def __init__(
        self, model: nn.Module, core: _C.Engine, layout: ModelLayout, device: torch.device
    ) -> None:
        self.core, self.layout = core, layout
        self.memory = BucketMemory(core, device)
        full = full_parameters(core, layout, self.memory)
        self.units = [SharedUnit(unit, core, layout, full) for unit in layout.units]
        self.unit_of = {p: unit for unit in self.units for p in unit.parameters}
        self._stack: list[_Call | None] = []
        self._open: dict[_Call, int] = {}  # acquired by backward -> its graph task
        self._queued: set[int] = set()  # graph tasks whose end will be told
        self._handles: list[Any] = []
        self._model = model
        self._watched: set[nn.Module] = set()

    def attach(self) -> None:
        """Puts the hooks on the modules, whose parameters are placed."""
        blocks = {unit.module: unit for unit in self.layout.units if unit.name}
        for module in self._model.modules():
            whole = module in blocks
            units: list[SharedUnit] = []
            for parameter in module.parameters(recurse=whole):
                unit = self.unit_of.get(parameter)
                if unit is not None and unit.sharded and unit not in units:
                    units.append(unit)
            if whole:
                # Forward may skip the units further inside (experts), which have their own hooks.
                name = blocks[module].name
                units = [unit for unit in units if not unit.name.startswith(name + ".")]
            # Modules of PyTorch read no parameters but their own.
            foreign = not type(module).__module__.startswith("torch.nn.")
            if units or foreign or external_parameters(module):
                self.watch(module, units)

    def watch(self, module: nn.Module, units: Sequence[SharedUnit] = ()) -> None:
        """Gathers `units`, and what else the module's forward turns out to need, for each call."""
        if module in self._watched:
            return
        self._watched.add(module)
        before, after = _Hook(self._before_forward, units), _Hook(self._after_forward)
        self._handles += [
            module.register_forward_pre_hook(before, with_kwargs=True, prepend=True),
            module.register_forward_hook(after, always_call=True),
        ]
        if any(p is not None and p.shape == _EMPTY for p in module._parameters.values()):
            module._parameters = _WatchedParameters(module._parameters, self._fetch)

    # --- forward ---

    def _before_forward(
        self, units: Sequence[SharedUnit], module: nn.Module, args: Any, kwargs: Any
    ) -> None:
        if not self._stack and self._open and torch._C._current_graph_task_id() < 0:
            self.release_open()  # of a backward that ended with an error
        external = external_parameters(module)
        if external:
            more = dict.fromkeys(self.unit_of[p] for p in external if p in self.unit_of)
            units = [*units, *(unit for unit in more if unit not in units)]
        if self._stack and all(unit.forwards for unit in units):
            self._stack.append(None)  # a call further out holds everything
            return
        call = _Call(list(units), self)
        self._stack.append(call)
        call.begin()
        if torch.is_grad_enabled():
            for tensor in tensors_in((args, kwargs)):
                if tensor.grad_fn is not None:
                    tensor.register_hook(call.end_backward)

    def _after_forward(self, _module: nn.Module, _args: Any, result: Any) -> None:
        call = self._stack.pop()
        if call is None:
            return
        if torch.is_grad_enabled():
            for tensor in tensors_in(result):
                if tensor.grad_fn is not None:
                    tensor.register_hook(call.begin_backward)
        call.end()

    def _fetch(self, parameter: nn.Parameter) -> None:
        unit = self.unit_of.get(parameter)
        call = next((call for call in reversed(self._stack) if call is not None), None)
        if unit is not None and call is not None:
            call.add(unit)

    # --- backward ---

    def opened(self, call: _Call) -> None:
        task = torch._C._current_graph_task_id()
        self._open[call] = task
        if task not in self._queued:
            self._queued.add(task)
            torch.autograd.Variable._execution_engine.queue_callback(
                lambda: self._end_of_task(task)
            )

    def closed(self, call: _Call) -> None:
        self._open.pop(call, None)

    def _end_of_task(self, task: int) -> None:
        self._queued.discard(task)
        for call in [call for call, of in self._open.items() if of == task]:
            call.end_backward()

    def release_open(self) -> None:
        """Releases what a backward left that did not come to its end."""
        self._queued.clear()
        for call in list(self._open):
            call.end_backward()

    def remove(self) -> None:
        """Takes all hooks off the model."""
        self.release_open()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._watched.clear()
        for module in self._model.modules():
            if isinstance(module._parameters, _WatchedParameters):
                module._parameters = dict(module._parameters)
