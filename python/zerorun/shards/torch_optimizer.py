"""A program's torch optimizer while an engine steps for it, and its states of the rank's shards."""

import collections
import contextlib
import copy
import functools
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from zerorun import _C
from zerorun import torch_seam as seam
from zerorun.hooks.parameter_memory import tensor_of
from zerorun.model.model_layout import ModelLayout
from zerorun.shards.parameters import ProgramWrites

SERVED = ("step", "zero_grad", "state_dict", "load_state_dict", "add_param_group", "__reduce_ex__")
_ABSENT = object()


def _served(optimizer: torch.optim.Optimizer, engines: weakref.ref[Any], name: str) -> Any:
    @functools.wraps(getattr(type(engines()), name))  # accelerate looks at the signature
    def method(_self: Any, *args: Any, **kwargs: Any) -> Any:
        serving = engines()
        if serving is None:
            raise _C.ConfigError(f"{name}: what steps in this optimizer's place was deleted")
        return getattr(serving, name)(*args, **kwargs)

    # torch's schedulers wrap a step that is not marked so, and look for the mark later.
    setattr(method, seam.WRAPPED_BY_SCHEDULER, True)
    return types.MethodType(method, optimizer)


class GivenOptimizer:
    """What a program passed for an engine to step in the place of: from serve() to remove() all
    that it offers is the engine's, except within as_torchs()."""

    def __init__(self, optimizer: torch.optim.Optimizer, core: _C.Engine) -> None:
        self.optimizer = optimizer
        self._core = core
        self._steps = 0
        self._other: dict[str, Any] = {}  # the attributes that it does not have now

    def serve(self, engines: torch.optim.Optimizer) -> None:
        """`engines`: the optimizer that takes its place. This does not keep it, nor the engine."""
        self._steps = self._core.step_count
        reference = weakref.ref(engines)
        self._other = {"state": engines.state}
        self._other |= {name: _served(self.optimizer, reference, name) for name in SERVED}
        self._other[seam.TAKES_SCALE] = False  # torch's fused ones unscale gradients in a step
        try:
            self._swap()
        except AttributeError as error:
            self._other.clear()
            raise _C.ConfigError(
                f"{type(self.optimizer).__name__}.state cannot be set ({error}), as an engine does "
                "in a step: give the property a setter, or give the engine the optimizer inside"
            ) from error

    def keep(self, engine: Any) -> None:
        """Lets the program's optimizer keep the engine, of which it may be all that is left."""
        self._other["_zerorun_engine"] = _ABSENT
        vars(self.optimizer)["_zerorun_engine"] = engine

    def forget_states(self) -> None:
        """Frees those that the engine has taken over, once a step has made others of them."""
        if self._other:
            self._other["state"].clear()

    def remove(self) -> None:
        """It is torch's own again, without the states that it had if these are of other values."""
        if not self._other:
            return
        if self._core.step_count != self._steps:
            self.forget_states()
        self._swap()
        self._other.clear()

    def with_step_hooks(self, update: Callable[[], _C.StepResult]) -> _C.StepResult:
        """The step of a rule of the core's, in which torch has no part, with the hooks that the
        program registered for steps of its optimizer, and for those of all. Those after a step are
        not called for one that was skipped, as with torch's GradScaler."""
        seam.call_step_hooks(self.optimizer, seam.STEP_PRE_HOOKS)
        result = update()
        if result.applied:
            seam.call_step_hooks(self.optimizer, seam.STEP_POST_HOOKS)
        return result

    def state_dict(self, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `make` returns, with the hooks for the state dicts of the program's optimizer."""
        for hook in seam.hooks_of(self.optimizer, seam.STATE_DICT_PRE_HOOKS):
            hook(self.optimizer)
        made = make()
        for hook in seam.hooks_of(self.optimizer, seam.STATE_DICT_POST_HOOKS):
            changed = hook(self.optimizer, made)
            made = made if changed is None else changed
        return made

    def load_state_dict(
        self, load: Callable[[dict[str, Any]], None], state_dict: dict[str, Any]
    ) -> None:
        """Likewise, when they are loaded."""
        given = dict(state_dict)
        for hook in seam.hooks_of(self.optimizer, seam.LOAD_STATE_DICT_PRE_HOOKS):
            changed = hook(self.optimizer, given)
            given = given if changed is None else changed
        load(given)
        for hook in seam.hooks_of(self.optimizer, seam.LOAD_STATE_DICT_POST_HOOKS):
            hook(self.optimizer)

    @contextlib.contextmanager
    def as_torchs(self) -> Iterator[None]:
        """For methods of its own, which may call others."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        attributes = vars(self.optimizer)
        for name, value in self._other.items():
            if name == "state":  # it may be a property of the class
                before, self.optimizer.state = self.optimizer.state, value
                self._other[name] = before
                continue
            self._other[name] = attributes.pop(name, _ABSENT)
            if value is not _ABSENT:
                attributes[name] = value


# Methods of optimizers that evaluate other parameters than they train (schedule-free ones).
MODES = ("train", "eval")


class TorchStates:
    """A torch optimizer that steps this rank's flat fp32 shards instead of the model's parameters.

    The states that the optimizer has already are cut like the parameters. Raises ConfigError on
    every rank, and changes nothing, for states that cannot be.
    """

    def __init__(
        self,
        core: _C.Engine,
        layout: ModelLayout,
        given: GivenOptimizer,
        ranks: _C.Communicator,
        writes: ProgramWrites,
    ) -> None:
        optimizer = given.optimizer
        _check_states(optimizer, layout)
        self._core, self._ranks, self._writes = core, ranks, writes
        self._given, self._optimizer = given, optimizer
        # The optimizer's own while it runs; the program sees those of its parameters.
        self._states: dict[Any, Any] = collections.defaultdict(dict)
        self._shards: dict[tuple[int, int], torch.nn.Parameter] = {}  # by (parameter, begin)
        self._members: list[list[torch.nn.Parameter]] = [[] for _ in optimizer.param_groups]
        parameter_of = {index: parameter for parameter, index in layout.ids.items()}
        for interval in core.state_intervals():
            if interval.grad is None:
                continue
            parameter = parameter_of[interval.parameter]
            shard = torch.nn.Parameter(tensor_of(interval.master))
            shard.grad = tensor_of(interval.grad)
            self._shards[interval.parameter, interval.begin] = shard
            self._members[layout.group_of[parameter]].append(shard)
            self.put_part(interval, _states_of(optimizer, parameter), layout.shapes[parameter])
        self.put_common(_common_in(optimizer.state))
        for mode in MODES:
            method = getattr(optimizer, mode, None)
            if callable(method):
                vars(optimizer)[mode] = self._switching(method)

    @property
    def has_started(self) -> bool:
        """True once the engine has made a step, or where the optimizer brought states."""
        return self._core.step_count > 0 or bool(self._states)

    def common(self) -> dict[str, Any]:
        """The states that belong to no parameter, such as MADGRAD's count of steps."""
        return _common_in(self._states)

    def forget_common(self) -> None:
        for key in self.common():
            del self._states[key]

    def put_common(self, values: dict[Any, Any]) -> None:
        """Replaces states that belong to no parameter. Tensors stay on the device of those that the
        optimizer has."""
        for key, value in values.items():
            known: Any = self._states.get(key)
            placed = isinstance(known, torch.Tensor) and isinstance(value, torch.Tensor)
            # A copy: `values` may belong to a dictionary that is loaded again.
            copied = value.to(known.device, copy=True) if placed else copy.deepcopy(value)
            self._states[key] = copied

    def get(self, parameter: int, begin: int) -> dict[str, Any]:
        """The states of the shard that begins at an element of a parameter."""
        return self._states.get(self._shards[parameter, begin], {})

    def put(self, parameter: int, begin: int, state: dict[str, Any]) -> None:
        """Replaces the states of a shard; without any the optimizer begins anew. Counts are copied:
        optimizers change them in place, and one may be that of several shards."""
        shard = self._shards[parameter, begin]
        self._states.pop(shard, None)
        if not state:
            return
        self._states[shard] = {
            # A number is a step count, as a tensor or not.
            key: copy.deepcopy(value)
            if not isinstance(value, torch.Tensor) or value.dim() == 0
            else _like(shard, value)
            for key, value in state.items()
        }

    def put_part(
        self, interval: _C.StateInterval, whole: dict[str, Any], shape: torch.Size
    ) -> None:
        """The same of those of a whole parameter."""
        part = slice(interval.begin, interval.begin + interval.numel)
        own = {
            key: value.detach().flatten()[part].clone()
            if is_per_element(key, value, shape)
            else copy.deepcopy(value)
            for key, value in whole.items()
        }
        self.put(interval.parameter, interval.begin, own)

    def clear(self) -> None:
        """Drops the shards and their states."""
        for mode in MODES:
            vars(self._optimizer).pop(mode, None)
        self._states.clear()
        self._shards.clear()
        self._members.clear()

    def step(self, frozen: Iterable[int] = ()) -> None:
        """Steps the shards, whose gradients the engine has prepared, but for those of `frozen`."""
        if isinstance(self._optimizer, torch.optim.Adagrad):
            for shard in self._shards.values():
                if not self._states.get(shard):
                    self._states.update(first_states(self._optimizer, shard))
        left = {shard: shard.grad for (index, _), shard in self._shards.items() if index in frozen}
        for shard in left:
            shard.grad = None
        try:
            self._on_shards(lambda optimizer: optimizer.step())
        finally:
            for shard, gradient in left.items():
                shard.grad = gradient

    def _switching(self, method: Callable[[], None]) -> Callable[[], None]:
        """The optimizer's method, which changes values, for the model's parameters. Collective."""

        def switch() -> None:
            self._writes.take()
            self._ranks.barrier(method.__name__)  # until none reads the values
            self._on_shards(lambda _: method())
            self._core.refresh_from_masters()

        return switch

    def _on_shards(self, run: Callable[[torch.optim.Optimizer], Any]) -> None:
        # The shards' gradients view the engine's memory, which holds their new values. Outside of
        # this step the groups have the model's parameters, which is what programs expect there.
        groups = self._optimizer.param_groups
        given = [group["params"] for group in groups]
        with self._given.as_torchs():
            optimizer: Any = self._optimizer
            before, optimizer.state = optimizer.state, self._states
            try:
                for group, shards in zip(groups, self._members, strict=True):
                    group["params"] = shards
                with torch.enable_grad():
                    run(optimizer)
            finally:
                self._states, optimizer.state = optimizer.state, before
                for group, params in zip(groups, given, strict=True):
                    group["params"] = params


def first_states(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> Any:
    """What Adagrad's constructor makes; up to PyTorch 2.9 its step makes none that are missing."""
    if not isinstance(optimizer, torch.optim.Adagrad):
        return {}
    value = optimizer.defaults["initial_accumulator_value"]
    return torch.optim.Adagrad([parameter], initial_accumulator_value=value).state


def _states_of(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> dict[str, Any]:
    """Those it has already, but for what Adagrad's constructor makes of a sharded parameter."""
    found = optimizer.state.get(parameter, {})
    is_empty = (
        isinstance(optimizer, torch.optim.Adagrad) and found.get("sum", parameter).numel() == 0
    )
    return {} if is_empty else found


def _common_in(states: Any) -> dict[str, Any]:
    return {key: value for key, value in states.items() if not isinstance(key, torch.Tensor)}


def _like(shard: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A state on the shard's device and, as when torch loads it, in its dtype if it is one of
    floating-point numbers."""
    dtype = shard.dtype if value.is_floating_point() else value.dtype
    return value.to(shard.device, dtype)


def is_per_element(key: str, value: Any, shape: torch.Size) -> bool:
    """True for a state with an element for each of the parameter's."""
    if key == "step" or not isinstance(value, torch.Tensor):
        return False
    return value.dim() > 0 or len(shape) == 0


def _check_states(optimizer: torch.optim.Optimizer, layout: ModelLayout) -> None:
    """Raises ConfigError for a state that the optimizer has already and that cannot be cut.

    It looks at all parameters, whichever rank keeps them, so that no rank goes on alone.
    """
    for parameter in layout.group_of:
        name, shape = layout.names[parameter], layout.shapes[parameter]
        for key, value in _states_of(optimizer, parameter).items():
            if is_per_element(key, value, shape) and value.shape != shape:
                raise _C.ConfigError(
                    f"{key} of {name} has shape {tuple(value.shape)}, the parameter "
                    f"{tuple(shape)}: an optimizer whose states are not its parameters' shape, or "
                    "are made from partitioned parameters, cannot run on shards"
                )
