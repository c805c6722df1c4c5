"""Stage 3: module hooks that make parameters full for as long as forward or backward uses them.

A unit is acquired before its module's forward and released after it. For backward, a hook on the
module's outputs acquires it again, and a hook on its inputs releases it: autograd runs the newest
node first, so when the gradient of an input reaches the node that made it, all nodes of the module
are done. A unit that no input ends (embeddings) is released at the end of backward.

Modules inside a unit's have no hooks. One that is called on its own is noticed when it reads an
empty parameter; all modules in units of that class have hooks from their next call on.

What forward hands out may lie in a unit's memory (a module that returns its parameter, or a view of
it): the call around it holds the unit from then on, and the outermost one returns copies. Where
nobody can tell when a unit is needed for the last time, it stays full until the step: its nodes in
the graph of a gradient's own gradient, and results that cannot be looked into.
"""

import functools
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.hooks import module_call, shared_unit
from zerorun.hooks.module_call import (
    AutocastCopies,
    Casts,
    ModuleCall,
    Views,
    is_transformed,
    recorded,
    tensors_in,
    views_in,
)
from zerorun.hooks.shared_unit import SharedUnit, external_parameters, registered
from zerorun.model.model_layout import ModelLayout
from zerorun.model.tensors import is_distributed, is_empty
from zerorun.model.uncopied import ModuleHook


class GatherHooks:
    """The hooks of one stage-3 engine on its model."""

    def __init__(
        self, model: nn.Module, core: _C.Engine, layout: ModelLayout, device: torch.device
    ) -> None:
        self.core, self.layout = core, layout
        self.memory = shared_unit.BucketMemory(core, device)
        full = shared_unit.full_parameters(core, layout, self.memory)
        units = (SharedUnit(unit, core, layout, full) for unit in layout.units)
        self.unit_of = {p: unit for unit in units for p in unit.parameters}
        self._unit_in = {
            full.untyped_storage()._cdata: unit
            for unit in self.units
            if unit.sharded
            for parameter, full in unit.full.items()
            if core.is_sharded(layout.ids[parameter])
        }
        # The running calls; without a ModuleCall where one further out holds everything.
        self._stack: list[tuple[nn.Module, ModuleCall | None]] = []
        self.casts: Casts = {}  # of the outermost one
        self._kept: dict[SharedUnit, None] = {}  # full until the step
        self._recomputed: list[SharedUnit] = []  # full until the next hook of a backward
        # Those acquired by backward, by its graph task, whose end will be told.
        self._open: dict[int, dict[ModuleCall, None]] = {}
        self._model, self._process = model, os.getpid()
        self._hooked: dict[nn.Module, tuple[Any, ...]] = {}  # with the hooks' handles
        # Compiled code calls these as they are.
        self.read = ModuleHook(self._read)
        self.read_as_cast = ModuleHook(self._read_as_cast)

    @functools.cached_property
    def units(self) -> list[SharedUnit]:
        return list(dict.fromkeys(self.unit_of.values()))

    @functools.cached_property
    def _device_type(self) -> str:
        return next((parameter.device.type for parameter in self.unit_of), "cpu")

    def attach(self) -> None:
        """Puts the hooks on the modules, whose parameters are placed."""
        module_call.on_autocast(self)
        for module in self._model.modules():
            shared_unit.watch_reads(module, self.unit_of, self)
        places = shared_unit.gathered_at(self._model, self.layout.units, self.unit_of)
        for module, units in places.items():
            self.hook(module, units)
        for module in filter(external_parameters, self._model.modules()):
            self.hook(module)

    def hook(self, module: nn.Module, units: Sequence[SharedUnit] = ()) -> None:
        """Gathers `units`, and what else the module's forward turns out to need, for each call."""
        if module in self._hooked:
            return
        before = ModuleHook(self._before_forward, units)
        after = ModuleHook(self._after_forward)
        self._hooked[module] = (
            module.register_forward_pre_hook(before, with_kwargs=True, prepend=True),
            module.register_forward_hook(after, always_call=True),
        )

    def own_units(self, module: nn.Module) -> list[SharedUnit]:
        """Those of the module's own parameters that come and go."""
        own = [self.unit_of[p] for p in module._parameters.values() if p in self.unit_of]
        return [unit for unit in dict.fromkeys(own) if unit.sharded]

    # --- forward ---

    def _before_forward(
        self, units: Sequence[SharedUnit], module: nn.Module, args: Any, kwargs: Any
    ) -> None:
        for called, _ in self._stack:
            if called is module:
                running = module_call.running_modules(sys._getframe(1))
                self._forget_interrupted(running[1:])  # before this call
                break
        stack = self._stack
        if not stack and self._open and torch._C._current_graph_task_id() < 0:
            self.release_open()  # of a backward that ended with an error
        external = external_parameters(module) if registered else ()
        if external:
            more = dict.fromkeys(self.unit_of[p] for p in external if p in self.unit_of)
            units = [*units, *(unit for unit in more if unit not in units)]
        if stack:
            for unit in units:
                if not unit.forwards:
                    break
            else:
                stack.append((module, None))  # a call further out holds everything
                return
        if os.getpid() != self._process:
            module_call.refuse_fork(module)
        autocast = torch.is_autocast_enabled(self._device_type)
        call = ModuleCall(self, AutocastCopies(self.casts) if autocast else None)
        stack.append((module, call))
        call.add(units)
        if torch.is_grad_enabled():
            call.given = given = tensors_in((args, kwargs))[0]
            for tensor in recorded(given) if is_transformed() else given:
                if tensor.grad_fn is not None:
                    tensor.register_hook(call.end_backward)

    def _after_forward(self, module: nn.Module, _args: Any, result: Any) -> Any:
        if not self._stack or self._stack[-1][0] is not module:
            return None  # compiled code has left out the hook before
        _, call = self._stack.pop()
        if not self._stack and self.casts:
            self.casts = {}
        if call is None:
            return None
        try:
            plain = type(result) is torch.Tensor
            tensors, complete = ([result], True) if plain else tensors_in(result, whole=True)
            if torch.is_grad_enabled():
                for tensor in recorded(tensors) if is_transformed() else tensors:
                    if tensor.grad_fn is not None:
                        tensor.register_hook(call.begin_backward)
                        # A view that changes in place leaves the node with its hook.
                        base = tensor._base
                        if base is not None and base.grad_fn is not None and call.made(base):
                            base.register_hook(call.begin_backward)
            views = views_in(tensors, self._unit_in)
            if views or not complete:
                return self._hand_out(call, result, complete, views)
            return None
        finally:
            call.given = ()
            if torch._C._current_graph_task_id() >= 0:  # the backward to come is another call's
                self._keep_frozen(call.units)
                call.let_go()
            call.end()

    def _keep_frozen(self, units: Sequence[SharedUnit]) -> None:
        """For a recomputation, at the end of which torch.utils.checkpoint compares the shapes of
        what was saved: it keeps frozen parameters themselves, of others what they were."""
        for unit in units:
            if any(not p.requires_grad for p in unit.parameters):
                unit.acquire()
                self._recomputed.append(unit)

    def _end_recomputation(self) -> None:
        recomputed, self._recomputed = self._recomputed, []
        for unit in recomputed:
            unit.release()

    def _hand_out(self, call: ModuleCall, result: Any, complete: bool, found: Views) -> Any:
        """Sees to what may be read of the call's units after its end; None or another result."""
        views = {id(tensor): (tensor, unit) for tensor, unit in found}
        around = self._call_around()
        if around is not None:
            escaping = [unit for _, unit in views.values()]
            for unit in dict.fromkeys([*escaping, *([] if complete else call.units)]):
                if unit not in around.units:
                    around.add([unit], self._under_autocast())
            return None
        if not complete and torch.is_grad_enabled():
            self.keep(call.units)
        if not views:
            return None
        copies = {key: tensor.clone() for key, (tensor, _) in views.items()}
        for made in copies.values():
            if made.requires_grad:
                made.register_hook(call.begin_backward)  # parameters are full for their gradients
        return module_call.with_copies(result, copies)

    def _call_around(self, module: nn.Module | None = None) -> ModuleCall | None:
        """The innermost call that holds anything; of those around `module`, if it is running."""
        modules = [called for called, _ in self._stack]
        inside = modules[::-1].index(module) if module in modules else 0
        around = self._stack[: len(modules) - inside]
        return next((call for _, call in reversed(around) if call is not None), None)

    def need(self, parameter: nn.Parameter, module: nn.Module | None = None) -> None:
        """Gathers a parameter until the end of the call that is running, and for its backward.
        `module`: the one that needs it, where the call may be of another."""
        unit, call = self.unit_of.get(parameter), self._call_around(module)
        if unit is not None and unit.sharded and call is not None and unit not in call.units:
            call.add([unit], self._under_autocast())

    def _read(self, module: nn.Module, parameter: nn.Parameter) -> Any:
        """A read of a module's parameter that no call holds: it is gathered for the call that runs.
        A module that runs without hooks, since it is inside a unit's and was called without it,
        gets them from its next call on. If no call is around it, the unit stays full until the
        step, or the module reads copies, whose memory ends with their use."""
        unit = self.unit_of.get(parameter)
        if unit is None or not unit.sharded or unit.entered or unit in self._kept:
            return parameter
        empty, has_graph = is_empty(parameter), torch.is_grad_enabled()
        if not empty and not (has_graph and parameter.is_floating_point()):
            return parameter  # gathered by the program
        call, reader = self._call_around(), self._running_without_hooks(module)
        if reader is not None:
            if os.getpid() != self._process:
                module_call.refuse_fork(reader)
            self._hook_on_its_own(reader)
        if call is not None and (empty or reader is None):
            call.add([unit], self._under_autocast())
        elif reader is not None:
            if not empty or not has_graph:
                return self.copy(parameter, unit)
            self.keep([unit])
        return parameter

    def _running_without_hooks(self, module: nn.Module) -> nn.Module | None:
        """The module of the model that reads a parameter of `module`, unless its call has hooks."""
        running = module_call.running_modules(sys._getframe(2))
        if module not in running:
            inside = set(self._model.modules()) if running else ()
            module = next((each for each in running if each in inside), module)
        hooked = any(called is module for called, _ in self._stack)
        return module if module in running and not hooked else None

    def _hook_on_its_own(self, module: nn.Module) -> None:
        """Hooks a module that was called without the unit around it, and what else is in the units
        of that kind: a model calls those of all its blocks, and more than one in each."""
        if module in self._hooked:
            return
        self.hook(module, self.own_units(module))
        own = [self.unit_of[p] for p in module._parameters.values() if p in self.unit_of]
        kinds = {type(unit.module) for unit in own if unit.name}
        for unit in self.units:
            if unit.name and type(unit.module) in kinds:
                for inner in unit.module.modules():
                    if any(p in self.unit_of for p in inner._parameters.values()):
                        self.hook(inner, self.own_units(inner))

    def copy(self, parameter: nn.Parameter, unit: SharedUnit) -> torch.Tensor:
        """A copy with a backward, for results or a graph that may outlast the unit."""
        unit.acquire()
        copy = parameter.clone()
        unit.release()
        if copy.grad_fn is not None:
            call = ModuleCall(self)
            call.units = [unit]
            call.serve_copy(copy)
        return copy

    def _under_autocast(self) -> bool:
        return torch.is_autocast_enabled(self._device_type)

    def autocast_begins(self) -> None:
        """Within calls that are running: their units' reads are casts from here on."""
        if self._stack and self._under_autocast():
            for unit in {unit for _, call in self._stack if call for unit in call.units}:
                unit.cast_reads()

    def _read_as_cast(self, parameter: nn.Parameter) -> Any:
        """The parameter as autocast would cast it for a product, or itself."""
        if is_distributed(parameter) or parameter.dtype != torch.float32:
            return parameter
        unit = self.unit_of.get(parameter)
        if unit is None or not self.core.is_sharded(self.layout.ids[parameter]):
            return parameter
        for _, call in reversed(self._stack):
            if call is not None and unit in call.units:
                dtype = torch.get_autocast_dtype(parameter.device.type)
                if call.copies is None:
                    call.copies = AutocastCopies(self.casts)
                return call.copies.get(parameter, dtype)
        return parameter

    def _forget_interrupted(self, running: list[nn.Module]) -> None:
        """Ends the calls that are running no more: PyTorch calls no hook after an exception like
        KeyboardInterrupt. `running`: as of running_modules."""
        stack, self._stack = self._stack, []
        for module, call in reversed(stack):
            if module in running:
                running = running[running.index(module) + 1 :]
                self._stack.insert(0, (module, call))
            elif call is not None:
                call.end()
        if not self._stack:
            self.casts = {}

    # --- backward ---

    def opened(self, call: ModuleCall) -> int:
        """The number of the backward that runs."""
        if self._recomputed:
            self._end_recomputation()
        task = torch._C._current_graph_task_id()
        if task not in self._open:
            self._open[task] = {}
            torch.autograd.Variable._execution_engine.queue_callback(
                lambda: self._end_of_task(task)
            )
        self._open[task][call] = None
        return task

    def closed(self, call: ModuleCall) -> None:
        if self._recomputed:
            self._end_recomputation()
        for calls in self._open.values():
            calls.pop(call, None)

    def _end_of_task(self, task: int) -> None:
        for call in self._open.pop(task, {}):
            call.end_backward()

    def keep(self, units: Sequence[SharedUnit]) -> None:
        """Keeps units full until the step."""
        for unit in units:
            if unit not in self._kept:
                unit.acquire()
                self._kept[unit] = None

    def drop_copies(self) -> None:
        """Drops full copies that the engine has kept for their next use."""
        self.memory.serve(self.core)

    def release_all(self) -> None:
        """Releases all that is held for graphs and for calls that did not come to their end.

        Before parameters change, outside of forward and backward.
        """
        if self._stack:
            self._forget_interrupted(module_call.running_modules(sys._getframe(1)))
        self.release_open()
        kept, self._kept = self._kept, {}
        for unit in kept:
            unit.release()

    def check_released(self) -> None:
        """Raises ConfigError while a program holds parameters, whose copies a step would miss."""
        held = next((unit.name for unit in self.units if unit.available), None)
        if held is not None:
            raise _C.ConfigError(
                f"parameters of {held or 'the model'} are held full by the program: steps, loads "
                "and streams go outside of GatheredParameters, and after partition() of what "
                "all_gather() made full"
            )

    def release_open(self) -> None:
        """Releases what a backward left that did not come to its end."""
        opened, self._open = self._open, {}
        self._end_recomputation()
        for calls in opened.values():
            for call in calls:
                call.end_backward()

    def remove(self) -> None:
        """Takes all hooks off the model."""
        self.release_all()
        for handles in self._hooked.values():
            for handle in handles:
                handle.remove()
        self._hooked.clear()
        for module in self._model.modules():
            if isinstance(module._parameters, shared_unit.PlainParameters):
                module._parameters = dict(module._parameters)
