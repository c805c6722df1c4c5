"""Stage 3: module hooks that make parameters full for as long as forward or backward uses them.

A unit is acquired before its module's forward and released after it. For backward, a hook on the
module's outputs acquires it again, and a hook on its inputs releases it: autograd runs the newest
node first, so when the gradient of an input reaches the node that made it, all nodes of the module
are done. A unit that no input ends (embeddings) is released at the end of backward.

What forward hands out may lie in a unit's memory (a module that returns its parameter, or a view of
it): the call around it holds the unit from then on, and the outermost one returns copies. Where
nobody can tell when a unit is needed for the last time, it stays full until the step: its nodes in
the graph of a gradient's own gradient, and results that cannot be looked into.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.hooks.autocast_copies import AutocastCopies, Casts, casts_what_it_reads
from zerorun.hooks.external import external_parameters
from zerorun.hooks.full_memory import BucketMemory, full_parameters
from zerorun.hooks.results import Results, tensors_in, with_copies
from zerorun.hooks.shared_unit import SharedUnit
from zerorun.hooks.watched_parameters import WatchedParameters, is_empty
from zerorun.model.left_behind import InnerHook, ModuleHook
from zerorun.model.local_tensor import is_distributed, local_of
from zerorun.model.model_layout import ModelLayout
from zerorun.model.units import modules_within

__all__ = ["GatherHooks"]


class _Call:
    """One forward of a module, and the backward that belongs to it."""

    __slots__ = ("copies", "held", "hooks", "units")

    def __init__(self, units: list[SharedUnit], hooks: GatherHooks) -> None:
        self.units = units  # from `begin` on, the acquired ones
        self.hooks = hooks
        self.held: list[SharedUnit] | None = None  # by backward
        self.copies = AutocastCopies(hooks.casts)

    def begin(self) -> None:
        units, self.units = self.units, []
        for unit in units:
            self.add(unit)

    def add(self, unit: SharedUnit) -> None:
        unit.acquire()
        unit.forwards += 1
        self.units.append(unit)

    def end(self) -> None:
        self.copies.end_forward()
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
        self.copies.hold()
        if torch.is_grad_enabled():  # create_graph: other nodes will read what these read
            self.hooks.keep(self.units)
            self.copies.let_go()

    def end_backward(self, _grad: Any = None) -> None:
        if self.held is None:
            return
        held, self.held = self.held, None
        self.copies.release()
        for unit in held:
            unit.release()
        self.hooks.closed(self)


_CALL = nn.Module._call_impl.__code__


def _running_modules(frame: FrameType | None) -> list[nn.Module]:
    """The modules whose call is on Python's stack, the innermost first."""
    found = []
    while frame is not None:
        if frame.f_code is _CALL:
            found.append(frame.f_locals["self"])
        frame = frame.f_back
    return found


class GatherHooks:
    """The hooks of one stage-3 engine on its model."""

    def __init__(
        self, model: nn.Module, core: _C.Engine, layout: ModelLayout, device: torch.device
    ) -> None:
        self.core, self.layout = core, layout
        self.memory = BucketMemory.serving(core, device)
        full = full_parameters(core, layout, self.memory)
        units = (SharedUnit(unit, core, layout, full) for unit in layout.units)
        self.unit_of = {p: unit for unit in units for p in unit.parameters}
        self._unit_in = {
            full.untyped_storage()._cdata: unit
            for unit in self.units
            if unit.sharded
            for parameter, full in unit.full.items()
            if core.is_sharded(layout.ids[parameter])
        }
        # The running calls; without a _Call where one further out holds everything.
        self._stack: list[tuple[nn.Module, _Call | None]] = []
        self.casts: Casts = {}  # of the outermost one
        self._kept: dict[SharedUnit, None] = {}  # full until the step
        self._recomputed: list[SharedUnit] = []  # full until the next hook of a backward
        self._open: dict[_Call, int] = {}  # acquired by backward -> its graph task
        self._queued: set[int] = set()  # graph tasks whose end will be told
        self._handles: list[Any] = []
        self._model, self._process = model, os.getpid()
        self._watched: set[nn.Module] = set()

    @functools.cached_property
    def units(self) -> list[SharedUnit]:
        return list(dict.fromkeys(self.unit_of.values()))

    def attach(self) -> None:
        """Puts the hooks on the modules, whose parameters are placed."""
        blocks = {unit.module: unit for unit in self.layout.units if unit.name}
        inner = modules_within(blocks.values())
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
            held = module in inner and not external_parameters(module)
            if units or foreign or external_parameters(module):
                self.watch(module, units, InnerHook if held else ModuleHook)

    def watch(
        self,
        module: nn.Module,
        units: Sequence[SharedUnit] = (),
        hook: type[ModuleHook] = ModuleHook,
    ) -> None:
        """Gathers `units`, and what else the module's forward turns out to need, for each call."""
        if module in self._watched:
            return
        self._watched.add(module)
        before, after = hook(self._before_forward, units), hook(self._after_forward)
        self._handles += hook.around(module, before, after)
        if any(p is not None and is_empty(p) for p in module._parameters.values()):
            read = self._as_cast if casts_what_it_reads(module) else None
            module._parameters = WatchedParameters(module, self.need, read)

    # --- forward ---

    def _before_forward(
        self, units: Sequence[SharedUnit], module: nn.Module, args: Any, kwargs: Any
    ) -> None:
        if any(module is called for called, _ in self._stack):
            self._forget_interrupted(_running_modules(sys._getframe(1))[1:])  # before this call
        if not self._stack and self._open and torch._C._current_graph_task_id() < 0:
            self.release_open()  # of a backward that ended with an error
        external = external_parameters(module)
        if external:
            more = dict.fromkeys(self.unit_of[p] for p in external if p in self.unit_of)
            units = [*units, *(unit for unit in more if unit not in units)]
        if self._stack and all(unit.forwards for unit in units):
            self._stack.append((module, None))  # a call further out holds everything
            return
        if os.getpid() != self._process:
            raise _C.ConfigError(
                f"{type(module).__name__} was called in a process forked from a rank, as a worker "
                "of a DataLoader is: at stage 3 a gather needs the ranks themselves. Call the "
                "model in the training process, or give workers a copy that was made before"
            )
        call = _Call(list(units), self)
        self._stack.append((module, call))
        call.begin()
        if torch.is_grad_enabled():
            for tensor in tensors_in((args, kwargs)):
                if tensor.grad_fn is not None:
                    tensor.register_hook(call.end_backward)

    def _after_forward(self, module: nn.Module, _args: Any, result: Any) -> Any:
        if not self._stack or self._stack[-1][0] is not module:
            return None  # compiled code has left out the hook before
        _, call = self._stack.pop()
        if not self._stack:
            self.casts = {}
        if call is None:
            return None
        results = Results(result)
        if torch.is_grad_enabled():
            for tensor in results.tensors:
                if tensor.grad_fn is not None:
                    tensor.register_hook(call.begin_backward)
        try:
            return self._hand_out(call, result, results)
        finally:
            if (
                torch._C._current_graph_task_id() >= 0
            ):  # the backward that follows is another call's
                self._keep_frozen(call.units)
                call.copies.let_go()
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

    def _hand_out(self, call: _Call, result: Any, results: Results) -> Any:
        """Sees to what may be read of the call's units after its end; None or another result."""
        views = {id(tensor): (tensor, unit) for tensor, unit in self._views_in(results.tensors)}
        around = self._call_around()
        if around is not None:
            escaping = [unit for _, unit in views.values()]
            for unit in dict.fromkeys([*escaping, *([] if results.complete else call.units)]):
                if unit not in around.units:
                    around.add(unit)
            return None
        if not results.complete and torch.is_grad_enabled():
            self.keep(call.units)
        if not views:
            return None
        copies = {key: tensor.clone() for key, (tensor, _) in views.items()}
        for made in copies.values():
            if made.requires_grad:
                made.register_hook(call.begin_backward)  # parameters are full for their gradients
        return with_copies(result, copies)

    def _views_in(self, tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, SharedUnit]]:
        """The tensors that lie in gathered memory, which is gone after the release."""
        found = []
        for tensor in tensors:
            try:
                memory = local_of(tensor) if is_distributed(tensor) else tensor
                unit = self._unit_in.get(memory.untyped_storage()._cdata)
            except NotImplementedError:  # sparse ones, and those of torch.func's transforms
                continue
            if unit is not None:
                found.append((tensor, unit))
        return found

    def _call_around(self, module: nn.Module | None = None) -> _Call | None:
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
            call.add(unit)

    def _as_cast(self, module: nn.Module, parameter: Any) -> Any:
        """The parameter as autocast would cast it for the module's forward, or itself."""
        is_running = bool(self._stack) and self._stack[-1][0] is module
        if not is_running or is_distributed(parameter):
            return parameter
        unit = self.unit_of.get(parameter)
        calls = (call for _, call in reversed(self._stack) if call is not None)
        holding = next((call for call in calls if unit in call.units), None)
        sharded = unit is not None and self.core.is_sharded(self.layout.ids[parameter])
        if holding is None or not sharded or parameter.dtype != torch.float32:
            return parameter
        return holding.copies.get(parameter, torch.get_autocast_dtype(parameter.device.type))

    def _forget_interrupted(self, running: list[nn.Module]) -> None:
        """Ends the calls that are running no more: PyTorch calls no hook after an exception like
        KeyboardInterrupt. `running`: as of _running_modules."""
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

    def opened(self, call: _Call) -> None:
        self._end_recomputation()
        task = torch._C._current_graph_task_id()
        self._open[call] = task
        if task not in self._queued:
            self._queued.add(task)
            torch.autograd.Variable._execution_engine.queue_callback(
                lambda: self._end_of_task(task)
            )

    def closed(self, call: _Call) -> None:
        self._end_recomputation()
        self._open.pop(call, None)

    def _end_of_task(self, task: int) -> None:
        self._queued.discard(task)
        for call in [call for call, of in self._open.items() if of == task]:
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
            self._forget_interrupted(_running_modules(sys._getframe(1)))
        self.release_open()
        kept, self._kept = self._kept, {}
        for unit in kept:
            unit.release()

    def check_released(self) -> None:
        """Raises ConfigError while a program holds parameters, whose copies a step would miss."""
        held = next((unit.name for unit in self.units if unit.available), None)
        if held is not None:
            raise _C.ConfigError(
                f"step: parameters of {held or 'the model'} are held full by the program: step "
                "outside of GatheredParameters, and after partition() of what all_gather() made "
                "full"
            )

    def release_open(self) -> None:
        """Releases what a backward left that did not come to its end."""
        self._queued.clear()
        self._end_recomputation()
        for call in list(self._open):
            call.end_backward()

    def remove(self) -> None:
        """Takes all hooks off the model."""
        self.release_all()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._watched.clear()
        for module in self._model.modules():
            if isinstance(module._parameters, WatchedParameters):
                module._parameters = dict(module._parameters)
