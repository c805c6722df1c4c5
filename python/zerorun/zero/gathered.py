"""What a program may use at stage 3 outside of the forward of modules: parameters that are full
within a with-block, methods of other names, as ``model.encode(x)``, and full parameters with a
backward."""

import enum
import functools
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import increment_version

from zerorun import _C
from zerorun.agreement import on_any_rank, share
from zerorun.hooks.gather_hooks import GatherHooks
from zerorun.hooks.shared_unit import register_external_parameter
from zerorun.model.partition import Partition, partition_of, together
from zerorun.model.tensors import local_of, place
from zerorun.shards.shards import Shards, shards_of
from zerorun.shards.state_access import StateAccess


def _listed(params: Any) -> list[Any]:
    """What was given to gather, also None, as a layer without a bias has it."""
    if params is None or isinstance(params, torch.Tensor):
        return [params]
    given = [params] if isinstance(params, nn.Module) else list(params)
    for each in given:
        if isinstance(each, nn.Module):
            raise _C.ConfigError(
                f"GatheredParameters: got a module, {type(each).__name__}, expected parameters: "
                "module.parameters() gives them"
            )
    return given


class GatheredParameters:
    """Makes sharded parameters full on every rank within a with-block. Collective.

    The interface is DeepSpeed's.

    - `params`: a parameter or any iterable of them, in any order, which may differ between ranks.
      Parameters of no engine, and duplicates, are allowed and ignored.
    - `modifier_rank`: this rank's changes are sent to all ranks and to the fp32 masters, at every
      stage (DeepSpeed: at stage 3 only). None: the changes of each rank are local and end with the
      block (merged adapters); with ``zero_optimization.enable_sanity_checks`` they raise
      InternalError on every rank.
    - `fwd_module`: a module whose forward uses the parameters, which may be running; they are
      registered as external to it (:func:`register_external_parameter`).
    - `enabled`: False does nothing.
    """

    def __init__(
        self,
        params: nn.Parameter | Iterable[nn.Parameter | None] | None,
        modifier_rank: int | None = None,
        fwd_module: nn.Module | None = None,
        enabled: bool = True,
    ) -> None:
        given = _listed(params)
        self._modifier_rank = modifier_rank
        self._partitions: list[Partition] = []
        self._held: list[tuple[Partition, torch.Tensor]] = []  # with the data before
        self._alone: list[Partition] = []
        # With their count of in-place changes and a copy of their values.
        self._read_only: list[tuple[Partition, int, torch.Tensor]] = []
        self._shards: set[Shards] = set()
        self._replicated: list[tuple[Shards, nn.Parameter]] = []  # that modifier_rank may change
        if not enabled:
            return
        for parameter in dict.fromkeys(given):
            partition = partition_of(parameter)
            shards = shards_of(parameter)
            if shards is not None:
                self._shards.add(shards)
            if partition is None and shards is not None and modifier_rank is not None:
                self._replicated.append((shards, parameter))
            if partition is not None:
                self._partitions.append(partition)
                if fwd_module is not None:
                    register_external_parameter(fwd_module, partition.parameter)
        # A set has another order on each rank, and what follows is collective.
        self._partitions.sort(key=_order)
        self._replicated.sort(key=lambda kept: (kept[0].number, kept[0].layout.names[kept[1]]))

    def __enter__(self) -> None:
        for shards in self._shards:
            shards.finish_updates()
        # What an engine gathers is its own until changes are stored.
        self._alone = [
            partition
            for partition in self._partitions
            if partition.comes_alone and (self._modifier_rank is None or not partition.in_engine)
        ]
        alone = set(self._alone)
        try:
            with together(self._partitions):
                for partition in self._partitions:
                    self._take(partition, partition in alone)
        except BaseException:
            self._release()
            raise

    def _take(self, partition: Partition, alone: bool) -> None:
        partition.acquire()
        parameter = partition.parameter
        self._held.append((partition, local_of(parameter)))
        if not alone:
            # Others read this memory: ranks that share it, or whoever had it already.
            place(parameter, local_of(parameter).clone())
        if self._modifier_rank is None and partition.refuses_edits:
            values = local_of(parameter)
            self._read_only.append((partition, _changes_of(values), values.clone()))

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        try:
            if self._modifier_rank is not None and error is None:
                for partition, before in self._held:
                    partition.keep_changes(before, self._modifier_rank)
                for shards, parameter in self._replicated:
                    label = f"parameter {shards.layout.names[parameter]}"
                    ranks = shards.communicator_of(parameter)
                    share(local_of(parameter), ranks, label, self._modifier_rank)
                    increment_version(parameter)  # the masters follow, of .data as well
            if error is None:
                self._check_read_only()
        finally:
            self._release()

    def _check_read_only(self) -> None:
        """Raises InternalError on every rank for what changed on one and would be lost."""
        held, self._read_only = self._read_only, []
        for partition, changes, before in held:
            now = local_of(partition.parameter)
            same = now.shape == before.shape and _changes_of(now) == changes
            same = same and torch.equal(_bits(now), _bits(before))
            what = "changes within GatheredParameters"
            if on_any_rank(not same, partition.communicator, what):
                raise _C.InternalError(
                    f"in-place modification of a parameter of shape {tuple(partition.shape)} "
                    "within GatheredParameters without modifier_rank, which would be lost: name "
                    "the rank whose values all are to take "
                    "(zero_optimization.enable_sanity_checks is on)"
                )

    def _release(self) -> None:
        held, self._held = self._held, []
        self._read_only.clear()
        for partition, before in held:
            place(partition.parameter, before)
            partition.end_gather()
        for home in {partition.home for partition in self._alone}:
            if home is not None:
                home.drop_copies()


def _order(partition: Partition) -> tuple[int, int]:
    """The same on all ranks, and another one for each; a pickled copy has the same ``ds_id``."""
    shards = shards_of(partition.parameter)
    return -1 if shards is None else shards.number, partition.parameter.ds_id


def _changes_of(values: torch.Tensor) -> int:
    """How often PyTorch has seen it changed in place, which misses what goes through ``.data``."""
    return 0 if values.is_inference() else values._version


def _bits(values: torch.Tensor) -> torch.Tensor:
    """Bytes, since a NaN is no other value than before."""
    return values.detach().contiguous().flatten().view(torch.uint8)


class ZeroParamStatus(enum.Enum):
    """Whether a parameter is full on this rank; the values are DeepSpeed's."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


def status_of(partition: Partition) -> ZeroParamStatus:
    """The status. Python never sees INFLIGHT, because it waits for gathers."""
    return ZeroParamStatus.AVAILABLE if partition.available else ZeroParamStatus.NOT_AVAILABLE


# --- methods of other names, and full parameters with a backward ---


class _MethodCall(nn.Module):
    """Takes the hooks of a method, which a module itself has for its forward alone."""

    def __init__(self, function: Callable[..., Any], hooks: GatherHooks) -> None:
        super().__init__()
        self.function, self.hooks = function, weakref.ref(hooks)

    def forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self.function(module, *args, **kwargs)


def register_forward_method(module: nn.Module, name: str) -> None:
    """From here on calls of the method `name` gather what they read at stage 3, as calls of
    `module` do, and its results have a backward.

    Only methods that use parameters of `module` itself need it: those of modules that they call
    are gathered anyway. May be called before and after zerorun.initialize. The same as FSDP2's
    ``register_fsdp_forward_method``. Raises ConfigError for what is no method of a module.
    """
    method: Any = getattr(module, name, None)
    if not isinstance(module, nn.Module) or getattr(method, "__self__", None) is not module:
        raise _C.ConfigError(
            f"register_forward_method: got {type(module)} and {name!r}, expected a module and the "
            "name of a method of it"
        )
    function = method.__func__
    # Of a module and its copies, whose memory they must not hold.
    calls: weakref.WeakKeyDictionary[nn.Module, _MethodCall] = weakref.WeakKeyDictionary()

    @functools.wraps(function)
    def gathering(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        found = () if torch.compiler.is_compiling() else map(partition_of, self.parameters())
        hooks = next((partition.home for partition in found if partition is not None), None)
        if not isinstance(hooks, GatherHooks):  # no engine shards the module
            return function(self, *args, **kwargs)
        call = calls.get(self)
        if call is None or call.hooks() is not hooks:
            call = calls[self] = _MethodCall(function, hooks)
            whole = [unit for unit in hooks.units if unit.name and unit.module is self]
            hooks.hook(call, whole or hooks.own_units(self))
        return call(self, *args, **kwargs)

    setattr(module, name, types.MethodType(gathering, module))


def full_tensor(parameter: nn.Parameter) -> torch.Tensor:
    """A copy of the whole parameter at every stage, whose backward gives the parameter gradients:
    for a penalty on weights, say. The same as ``full_tensor()`` of FSDP2's parameters.

    Every rank calls it. The parameter itself is full only meanwhile, and for its gradient.
    """
    if not isinstance(parameter, nn.Parameter):
        raise _C.ConfigError(f"full_tensor: got {type(parameter)}, expected a parameter")
    partition = partition_of(parameter)
    hooks = None if partition is None else partition.home
    if isinstance(hooks, GatherHooks):
        return hooks.copy(parameter, hooks.unit_of[parameter])
    if partition is not None:
        raise _C.ConfigError(
            "full_tensor: the parameter is partitioned by zero.Init and belongs to no engine: read "
            "it within zerorun.zero.GatheredParameters"
        )
    return parameter.clone()


# --- master parameters, gradients and optimizer states of single parameters, at any stage ---
#
# The functions are DeepSpeed's. All tensors are fp32 and, where they are returned, copies on the
# engine's device.
#
# - ``full`` functions use whole tensors in the parameter's shape (a DTensor's for one), and are
#   collective: a getter all-reduces as many elements, and every rank has the result; a setter takes
#   the same value on every rank.
# - ``local`` functions use the elements that this rank stores, one-dimensional, in the order of the
#   flattened parameter: all of them at stage 0, at stages 1 to 3 those in its shard, which may be
#   none.
#
# A getter returns None for a value that does not exist: of a frozen parameter, a state before the
# first step, a gradient between a step and the next backward. In these cases, for values of another
# size, and for parameters of no engine, a setter raises ConfigError on every rank, before anything
# changes.

_MASTER = "fp32_param"
_GRAD = "grad"


def _get(parameter: nn.Parameter, name: str, full: bool) -> torch.Tensor | None:
    shards = shards_of(parameter)
    if shards is None:
        return None
    states = StateAccess(shards)
    return states.get_full(parameter, name) if full else states.get_local(parameter, name)


def _set(parameter: nn.Parameter, name: str, value: torch.Tensor, full: bool) -> None:
    shards = shards_of(parameter)
    if shards is None:
        raise _C.ConfigError(
            f"setting {name}: a parameter of shape {tuple(parameter.shape)} belongs to no engine; "
            "give one of a model that initialize() has taken and that is not destroyed"
        )
    states = StateAccess(shards)
    (states.set_full if full else states.set_local)(parameter, name, value)


def safe_get_full_fp32_param(param: nn.Parameter) -> torch.Tensor | None:
    """Returns the full fp32 master parameter. Collective."""
    return _get(param, _MASTER, full=True)


def safe_set_full_fp32_param(param: nn.Parameter, value: torch.Tensor) -> None:
    """Sets the master parameter and the parameter on all ranks. Collective."""
    _set(param, _MASTER, value, full=True)


def safe_get_full_grad(param: nn.Parameter) -> torch.Tensor | None:
    """Returns the full gradient, averaged over ranks and micro-steps and without the loss scale,
    between backward and step. Collective."""
    return _get(param, _GRAD, full=True)


def safe_set_full_grad(param: nn.Parameter, value: torch.Tensor) -> None:
    """Replaces the averaged gradient, between backward and step; clipping is still to come.
    Collective."""
    _set(param, _GRAD, value, full=True)


def safe_get_full_optimizer_state(param: nn.Parameter, optim_state_key: str) -> torch.Tensor | None:
    """Returns a full optimizer state; `optim_state_key`: "exp_avg", ... Collective."""
    return _get(param, optim_state_key, full=True)


def safe_set_full_optimizer_state(
    param: nn.Parameter, value: torch.Tensor, optim_state_key: str
) -> None:
    """Replaces a full optimizer state. Collective."""
    _set(param, optim_state_key, value, full=True)


def safe_get_local_fp32_param(param: nn.Parameter) -> torch.Tensor | None:
    """Returns this rank's elements of the master parameter, flat."""
    return _get(param, _MASTER, full=False)


def safe_set_local_fp32_param(param: nn.Parameter, value: torch.Tensor) -> None:
    """Replaces this rank's elements of the master. Collective: every rank sets its own."""
    _set(param, _MASTER, value, full=False)


def safe_get_local_grad(param: nn.Parameter) -> torch.Tensor | None:
    """Returns this rank's elements of the averaged gradient, flat. Collective."""
    return _get(param, _GRAD, full=False)


def safe_set_local_grad(param: nn.Parameter, value: torch.Tensor) -> None:
    """Replaces this rank's elements of the averaged gradient. Collective."""
    _set(param, _GRAD, value, full=False)


def safe_get_local_optimizer_state(
    param: nn.Parameter, optim_state_key: str
) -> torch.Tensor | None:
    """Returns this rank's elements of an optimizer state, flat."""
    return _get(param, optim_state_key, full=False)


def safe_set_local_optimizer_state(
    param: nn.Parameter, value: torch.Tensor, optim_state_key: str
) -> None:
    """Replaces this rank's elements of an optimizer state. Collective: every rank sets its own."""
    _set(param, optim_state_key, value, full=False)
