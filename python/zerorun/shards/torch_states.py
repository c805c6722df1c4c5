"""The states that a torch optimizer keeps of this rank's shards."""

import collections
import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch

from zerorun import _C
from zerorun.hooks.parameter_memory import tensor_of
from zerorun.model.model_layout import ModelLayout
from zerorun.shards.given_optimizer import GivenOptimizer
from zerorun.shards.parameter_checks import ProgramWrites

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
            known = optimizer.state.get(parameter)
            if known is not None:
                part = slice(interval.begin, interval.begin + interval.numel)
                self._states[shard] = {
                    key: _like(shard, value.detach().flatten()[part], copy=True)
                    if is_per_element(key, value, layout.shapes[parameter])
                    else copy.deepcopy(value)
                    for key, value in known.items()
                }
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
            key: copy.deepcopy(value) if _is_number(value) else _like(shard, value)
            for key, value in state.items()
        }

    def clear(self) -> None:
        """Drops the shards and their states."""
        for mode in MODES:
            vars(self._optimizer).pop(mode, None)
        self._states.clear()
        self._shards.clear()
        self._members.clear()

    def step(self, frozen: Iterable[int] = ()) -> None:
        """Steps the shards, whose gradients the engine has prepared, but for those of `frozen`."""
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


def _common_in(states: Any) -> dict[str, Any]:
    return {key: value for key, value in states.items() if not isinstance(key, torch.Tensor)}


def _like(shard: torch.Tensor, value: torch.Tensor, copy: bool = False) -> torch.Tensor:
    """A state on the shard's device and, as when torch loads it, in its dtype if it is one of
    floating-point numbers."""
    dtype = shard.dtype if value.is_floating_point() else value.dtype
    return value.to(shard.device, dtype, copy=copy)


def _is_number(value: Any) -> bool:
    """True for a state that is not one per element: a step count, as a tensor or not."""
    return not isinstance(value, torch.Tensor) or value.dim() == 0


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
        for key, value in optimizer.state.get(parameter, {}).items():
            if is_per_element(key, value, shape) and value.shape != shape:
                raise _C.ConfigError(
                    f"{key} of {name} has shape {tuple(value.shape)}, the parameter "
                    f"{tuple(shape)}: an optimizer whose states are not its parameters' shape, or "
                    "are made from partitioned parameters, cannot run on shards"
                )
