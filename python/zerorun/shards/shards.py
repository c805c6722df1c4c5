"""Shards: a model's states in the core's memory, sharded over the ranks."""

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from zerorun import _C, communicator, experts, torch_seam
from zerorun.agreement import share
from zerorun.hooks.gather_hooks import GatherHooks
from zerorun.hooks.parameter_memory import by_parameter, full_view
from zerorun.hooks.updated_parameters import UpdatedParameters
from zerorun.model.buffers import share_buffers
from zerorun.model.engine_ranks import EngineRanks
from zerorun.model.model_layout import ModelLayout
from zerorun.model.partition import Partition, partition_of
from zerorun.model.private_partition import PrivatePartition, own_nbytes
from zerorun.model.tensors import LocalHook, is_distributed, local_of, mode_of, parts_of, place
from zerorun.model.uncopied import Uncopied, check_hooks_are_taken
from zerorun.model.units import Unit
from zerorun.program_warning import logger
from zerorun.shards.background_saver import BackgroundSaver
from zerorun.shards.parameters import EmptyStateWarnings, EnginePartition, Loading, ProgramWrites
from zerorun.shards.torch_optimizer import TorchStates

_ATTRIBUTE = "_zerorun_shards"


@dataclass(frozen=True)
class Policy:
    """The differences between zerorun's own engines and those of the stand-in for DeepSpeed.

    - `round_masters`: masters of 16-bit parameters begin at the parameters' rounded values.
    - `clips_as_torch`: torch.nn.utils.clip_grad_norm_ clips the engine's gradients, and steps of an
      optimizer that the engine was not given are errors; else both warn.
    - `pickles_objects`: a save pickles values that JSON cannot represent; else it rejects them.
    - `resumes_data`: a load puts the training data loader where it was; else the program does.
    - `optimizer_of`: the class of the engine's optimizer, by its stage; None: ZeroOptimizer.
    """

    round_masters: bool = False
    clips_as_torch: bool = True
    pickles_objects: bool = False
    resumes_data: bool = True
    optimizer_of: Callable[[int], type[Any]] | None = None


_NO_LOOP = Policy(clips_as_torch=False)  # of an optimizer without an engine


class _Reference(Uncopied):
    """The shards that a parameter belongs to."""

    def __init__(self, shards: "Shards") -> None:
        self.shards = shards  # they live as long as the model, whoever drops the engine


def shards_of(parameter: nn.Parameter) -> "Shards | None":
    """The shards that a parameter belongs to, if it belongs to any."""
    reference = getattr(parameter, _ATTRIBUTE, None)
    return None if reference is None else reference.shards


_register = torch.Tensor.register_post_accumulate_grad_hook


@functools.wraps(_register)
def _register_before(tensor: Any, hook: Callable[..., Any]) -> Any:
    handle, shards = _register(tensor, hook), shards_of(tensor)
    if shards is not None and tensor in shards._handles:
        shards._collect(tensor)
    return handle


_flatten = nn.RNNBase.flatten_parameters


@functools.wraps(_flatten)
def _flatten_others(module: Any) -> None:
    """On a GPU it moves all weights into one block, where they would not be the engine's any more.
    Without that cuDNN copies them for each call."""
    if all(shards_of(parameter) is None for parameter in module.parameters(recurse=False)):
        _flatten(module)


def take_over(parameters: Iterable[nn.Parameter], *, left: bool = False) -> None:
    """Ends the engines that parameters belong to, so that they can be given to another one; `left`:
    those that nobody steps any more. As Shards.close, also in what is collective."""
    for shards in dict.fromkeys(map(shards_of, parameters)):
        if shards is not None and (shards.is_left or not left):
            shards.close()


def while_alive(method: Callable[[], Any]) -> Callable[[], Any]:
    """Calls the method as long as its object is there; None and nothing else afterwards."""
    found = weakref.WeakMethod(method)
    return lambda: (bound := found()) and bound()


_numbers = itertools.count()


class _Before(NamedTuple):
    """What a parameter was before the engine had it."""

    device: torch.device
    dtype: torch.dtype
    partitioned: bool


class Shards:
    """A model in a core engine, from the making of the engine until close().

    Checkpoints, single states, optimizers and the training loop work on this. Making it is one
    step: the engine is made and takes the model's values (rank 0's) parameter by parameter, each of
    which becomes a view of the engine's memory at once; at stage 3 hooks gather them. When a part
    of that fails, the model is given back as it was, though what the engine had taken is rounded to
    its dtype. As a context manager it does so for the block too.
    """

    steps_made = 0  # the core counts anew where states begin anew

    def __init__(
        self,
        layout: ModelLayout,
        settings: _C.Config,
        ranks: EngineRanks,
        device: torch.device,
        model: nn.Module | None = None,
        policy: Policy = _NO_LOOP,
    ) -> None:
        """Collective. `settings`: as adapt_config gave them. Without `model` no hooks are made:
        the parameters are not of one module, and somebody else calls the collector."""
        communicator.end_at_exit()
        torch_seam.replace(nn.RNNBase, _flatten.__name__, _flatten_others)
        self.layout = layout
        self.settings = settings
        self.ranks = ranks
        self.device = device  # where the parameters are
        self.gather_hooks: GatherHooks | None = None  # at stage 3
        # Where gathers of updated parameters may continue after a step.
        self.updates: UpdatedParameters | None = None
        self.torch_states: TorchStates | None = None  # of an external optimizer
        self.policy = policy
        self.number = next(_numbers)  # the same on all ranks
        self._loop: Callable[[], Any] | None = None  # a weak reference to what steps this
        self._handles: dict[Any, Any] = {}  # by parameter, or by itself
        self._before = {
            p: _Before(p.device, p.dtype, partition_of(p) is not None) for p in layout.names
        }
        groups = [_C.ParameterGroup() for _ in range(max(1, layout.group_count))]
        self.core = _C.Engine(
            settings,
            ranks.data,
            layout.specs(),
            groups,
            job=ranks.job,
            part=(ranks.part, ranks.model_size),
            tensor=ranks.tensor,
            parts=list(ranks.experts.values()),
            moved_nbytes=sum(map(own_nbytes, layout.names)),
        )
        with self:
            if model is not None:
                share_buffers(model, ranks.data)
            for parameter, name in layout.outside.items():
                for part in parts_of(parameter):
                    share(part, ranks.data, f"initial values of {name}")
            reference, rounds = _Reference(self), policy.round_masters
            for parameter in Loading(self.core, layout, ranks, device, round_masters=rounds):
                self._take(parameter, reference)
            self.collector = _C.GradientCollector(self.core)
            if model is not None:
                torch_seam.replace(torch.Tensor, _register.__name__, _register_before)
                for parameter in filter(layout.is_trainable, layout.ids):
                    self._collect(parameter)
                self._attach_hooks(model)
            whole = [p for p, index in layout.ids.items() if not self.core.is_sharded(index)]
            self.writes = ProgramWrites(self.core, layout, whole, replicated=self.stage == 0)

    def __enter__(self) -> "Shards":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            return
        try:
            self.close(as_before=True)
        except Exception as problem:  # the error that says why is the block's
            logger.error(
                "the model's parameters could not be given back (%s): make the model anew", problem
            )

    @property
    def communicator(self) -> _C.Communicator:
        """The communicator of the ranks that hold the same part of the model."""
        return self.ranks.data

    def communicator_of(self, parameter: nn.Parameter) -> _C.Communicator:
        """The communicator of the ranks that have the parameter; an expert is not on all."""
        return self.ranks.holding(self.layout.ranks_of.get(parameter, 0))

    @property
    def stage(self) -> int:
        return self.settings.zero.stage

    @property
    def external(self) -> bool:
        """True if a torch optimizer updates the shards, instead of a rule of the core's."""
        return self.settings.optimizer.type == _C.EXTERNAL_OPTIMIZER

    @functools.cached_property
    def saver(self) -> BackgroundSaver:
        """The thread that saves beside the training."""
        return BackgroundSaver(self.core, self.settings, self.communicator)

    def _collect(self, parameter: Any) -> None:
        """Registers the hook that takes a gradient, behind all others, which find it in `.grad`."""
        hook = self.collector.hook(self.layout.ids[parameter])
        local = LocalHook(hook) if is_distributed(parameter) else hook
        before, self._handles[parameter] = self._handles.get(parameter), _register(parameter, local)
        if before is not None:
            before.remove()

    def _take(self, parameter: nn.Parameter, reference: _Reference) -> None:
        """Lets the parameter's own memory and gradient go: the engine has its values."""
        setattr(parameter, _ATTRIBUTE, reference)
        if self.layout.is_trainable(parameter):
            parameter.grad = None  # of a training before this one
        partition = partition_of(parameter)
        if partition is not None:
            partition.detach()
        if self.core.is_sharded(self.layout.ids[parameter]):
            place(parameter, local_of(parameter).new_empty(0, device=self.device))
        else:
            place(parameter, full_view(self.core, self.layout, parameter))

    def _attach_hooks(self, model: nn.Module) -> None:
        """At stage 3 gathers the parameters for their use, else waits for their updates there."""
        if self.stage < 3:
            if self.stage > 0 and self.settings.zero.overlap_param_gather:
                check_hooks_are_taken(model)
                self.updates = UpdatedParameters(model, self.core, self.layout)
            return
        check_hooks_are_taken(model)
        hooks = GatherHooks(model, self.core, self.layout, self.device)
        self.gather_hooks = hooks
        intervals = by_parameter(self.core)
        for unit in hooks.units:
            for parameter in unit.parameters:
                own = intervals.get(self.layout.ids[parameter], [])
                EnginePartition(hooks, self.communicator_of(parameter), unit, parameter, own)
            unit.place()
        hooks.attach()
        sharded = {p for p, index in self.layout.ids.items() if self.core.is_sharded(index)}
        self.until_closed(EmptyStateWarnings(model, sharded))

    def serve(self, loop: Any) -> None:
        """`loop` steps this from here on: an engine, or an optimizer that has no engine. A model
        that nobody steps any more keeps its gradients, and may be given to others."""
        self._loop = weakref.ref(loop)
        weakref.finalize(loop, while_alive(self.leave_gradients)).atexit = False

    @property
    def is_left(self) -> bool:
        """True once what stepped this was deleted."""
        return self._loop is not None and self._loop() is None

    def finish_reduction(self) -> bool:
        """Ends an open micro-step; True where there are reduced gradients. Collective."""
        finish = getattr(self._loop and self._loop(), "_finish_reduction", bool)
        return bool(finish())

    def take_replaced_states(self) -> None:
        """Lets states begin anew that the program has replaced. Collective."""
        loop: Any = self._loop and self._loop()
        for optimizer in (loop, getattr(loop, "optimizer", None)):
            getattr(optimizer, "_take_replaced_states", bool)()

    def until_closed(self, handle: Any) -> None:
        """Calls `handle.remove()` when this ends or nobody will step any more."""
        self._handles[handle] = handle

    def release_all(self) -> None:
        """Releases what forward and backward have left gathered, before parameters change.

        Raises ConfigError where the program itself has gathered parameters.
        """
        if self.gather_hooks is not None:
            self.gather_hooks.release_all()
            self.gather_hooks.check_released()

    def finish_updates(self) -> None:
        """Waits for updated parameters, before they are read by other ways than a module."""
        if self.updates is not None:
            self.updates.finish()

    def leave_gradients(self) -> None:
        """Lets gradients stay with the parameters; nobody will step any more."""
        while self._handles:
            self._handles.popitem()[1].remove()
        self._loop = lambda: None  # nobody steps this any more
        updates, self.updates = self.updates, None
        if updates is not None:
            updates.remove()

    def close(self, as_before: bool = False) -> None:
        """Gives the memory back and takes all hooks off the model, which stays usable.

        Parameters become ordinary tensors; at stage 3 each rank keeps its part, as under zero.Init,
        or with `as_before` only of those that were like that before. A second call does nothing.
        Waits for a save that is under way, and raises its error when all else is done. Collective
        at stage 3 where ranks do not share parameters (on GPUs); else it only must not come while
        another rank is within a step.
        """
        if self.core.closed:
            return
        with mode_of(self.layout.names), contextlib.ExitStack() as stack:
            stack.callback(self.saver.close)
            self._give_back(as_before)

    def _give_back(self, as_before: bool) -> None:
        try:
            self.leave_gradients()
            if self.gather_hooks is not None:
                self.gather_hooks.remove()
            with torch.no_grad():
                if self.stage < 3:
                    self._return(list(self.layout.names), as_before)
                else:
                    for unit in self.layout.units:
                        self._return_unit(unit, as_before)
        finally:
            self.gather_hooks = None
            if self.torch_states is not None:
                self.torch_states.clear()
            self.__dict__.pop("collector", None)
            self.core.close()

    def _return_unit(self, unit: Unit, as_before: bool) -> None:
        taken = [parameter for parameter in unit.parameters if hasattr(parameter, _ATTRIBUTE)]
        if not taken or partition_of(taken[0]) is not None:
            self._return(taken, as_before)
            return
        # An error came before the hooks, which gather a unit else.
        self.core.accept_changes()
        gathered = _C.ParameterSwitch(self.core, unit.name)
        gathered.acquire()
        try:
            self._return(taken, as_before)
        finally:
            gathered.release()

    def _return(self, parameters: list[nn.Parameter], as_before: bool) -> None:
        """Makes parameters ordinary ones, or at stage 3 a unit's ones of zero.Init."""
        full: dict[Partition, torch.Tensor] = {}  # of the unit; its releases empty all of them
        for parameter in parameters:
            if not hasattr(parameter, _ATTRIBUTE):
                continue  # it was not taken yet
            parameter.grad = None
            delattr(parameter, _ATTRIBUTE)
            partition = partition_of(parameter)
            if partition is None:
                values = full_view(self.core, self.layout, parameter)
                place(parameter, self._kept(parameter, values.clone(), as_before))
                if self.stage == 3 and self._before[parameter].partitioned:
                    self._partition(parameter)
            elif partition.in_engine:
                full[partition] = self._kept(parameter, partition.gather_full(), as_before)
        for partition, values in full.items():
            parameter = partition.parameter
            partition.detach()
            place(parameter, values)
            if is_distributed(parameter):
                continue  # zero.Init has none: its piece stays whole
            if self._before[parameter].partitioned or not as_before:
                self._partition(parameter)

    def _partition(self, parameter: Any) -> None:
        communicator = self.communicator_of(parameter)
        is_expert = communicator is not self.communicator
        ranks = experts.named(parameter.group_name, "").data_ranks if is_expert else None
        PrivatePartition(parameter, communicator, ranks or self.ranks.data_ranks)

    def _kept(self, parameter: nn.Parameter, values: torch.Tensor, as_before: bool) -> torch.Tensor:
        """The values as the parameter keeps them."""
        before = self._before[parameter]
        return values.to(before.device, before.dtype) if as_before else values
