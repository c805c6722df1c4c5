"""A call of a module at stage 3: what is gathered for its forward, and again for its backward, and
the tensors that it takes, returns, and casts under autocast."""

import copy
import dataclasses
import functools
import types
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch._C import _functorch as functorch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map_only

from zerorun import _C, torch_seam
from zerorun.hooks.shared_unit import SharedUnit
from zerorun.model.tensors import is_distributed, local_of

Views = list[tuple[torch.Tensor, SharedUnit]]


class ModuleCall:
    """One forward of a module, and the backward that belongs to it."""

    __slots__ = ("copies", "given", "held", "hooks", "task", "units")

    def __init__(self, hooks: Any, copies: "AutocastCopies | None" = None) -> None:
        self.units: list[SharedUnit] = []  # the acquired ones
        self.hooks = hooks  # GatherHooks, which made the call
        self.held: list[SharedUnit] | None = None  # by backward
        self.task = -1  # that backward's number
        self.copies = copies  # under autocast, which may also begin within
        self.given: Sequence[torch.Tensor] = ()  # the tensors that it takes, until its end

    def add(self, units: Sequence[SharedUnit], autocast: bool = False) -> None:
        """`autocast`: it has begun within the call."""
        autocast = autocast or self.copies is not None
        for unit in units:
            unit.enter(autocast)
            unit.forwards += 1
            self.units.append(unit)

    def end(self) -> None:
        if self.copies is not None:
            self.copies.end_forward()
        for unit in self.units:
            unit.forwards -= 1
            unit.leave()

    def made(self, base: torch.Tensor) -> bool:
        """True if what a result is a view of was made in the call."""
        return not any(base is each or base is each._base for each in self.given)

    def begin_backward(self, _grad: Any = None) -> None:
        if self.held is not None:
            return
        self.held = []
        self.task = self.hooks.opened(self)
        for unit in self.units:
            unit.enter(False)
            self.held.append(unit)
        if self.copies is not None:
            self.copies.hold()
        if torch.is_grad_enabled():  # create_graph: other nodes will read what these read
            self.hooks.keep(self.units)
            self.let_go()

    def end_backward(self, grad: Any = None) -> None:
        """`grad`: of an input. Autograd has then run all nodes of the module, unless it is that of
        a backward within the one that gathered (a recomputed forward may take gradients)."""
        if self.held is None or (
            grad is not None and self.task != torch._C._current_graph_task_id()
        ):
            return
        held, self.held = self.held, None
        if self.copies is not None:
            self.copies.release()
        for unit in held:
            unit.leave()
        self.hooks.closed(self)

    def serve_copy(self, copy: torch.Tensor) -> None:
        """Is the call of the backward of a parameter's copy: its gradient wants the parameter full.
        The hook of the copy ends with its graph; autograd's node of the parameter may stay."""
        node: Any = copy.grad_fn
        gradient = node.next_functions[0][0]

        def arrives(_: torch.Tensor) -> None:
            def ends(*_: Any) -> None:
                self.end_backward()
                for handle in handles:
                    handle.remove()

            handles = [gradient.register_prehook(self.begin_backward)]
            handles.append(gradient.register_hook(ends))

        copy.register_hook(arrives)

    def let_go(self) -> None:
        """Leaves autograd what was cast for it."""
        if self.copies is not None:
            self.copies.let_go()


_CALL = nn.Module._call_impl.__code__


def running_modules(frame: FrameType | None) -> list[nn.Module]:
    """The modules whose call is on Python's stack, the innermost first."""
    found = []
    while frame is not None:
        if frame.f_code is _CALL:
            found.append(frame.f_locals["self"])
        frame = frame.f_back
    return found


def refuse_fork(module: nn.Module) -> None:
    """For a call in another process than the hooks'."""
    raise _C.ConfigError(
        f"{type(module).__name__} was called in a process forked from a rank, as a worker "
        "of a DataLoader is: at stage 3 a gather needs the ranks themselves. Call the "
        "model in the training process, or give workers a copy that was made before"
    )


def views_in(tensors: Sequence[torch.Tensor], unit_in: Mapping[int, SharedUnit]) -> Views:
    """The tensors that lie in gathered memory, which is gone after the release. `unit_in`: by its
    storages."""
    found = []
    for tensor in tensors:
        try:
            plain = type(tensor) is torch.Tensor or not is_distributed(tensor)
            memory = tensor if plain else local_of(tensor)
            unit = unit_in.get(memory.untyped_storage()._cdata)
        except NotImplementedError:  # sparse ones, and those of torch.func's transforms
            continue
        if unit is not None:
            found.append((tensor, unit))
    return found


_MAX_OBJECTS = 1000  # looked into; a result that refers to a data set must not cost a walk of it
_NO_TENSORS = (str, bytes, int, float, complex, torch.dtype, torch.device, nn.Module, type)
_ITEMS = (list, tuple, set, frozenset, deque)
# Code that runs later, with tensors that nobody sees until then.
_CLOSED = (
    types.FunctionType,
    types.MethodType,
    types.GeneratorType,
    types.CoroutineType,
    functools.partial,
)


def tensors_in(value: Any, whole: bool = False) -> tuple[list[torch.Tensor], bool]:
    """The tensors in a module's arguments, as far as they are in containers; with `whole`, those in
    what a forward returned, in containers and objects of any kind.

    And whether these are all: more may be in what cannot be looked into, as functions, generators.
    """
    found: list[torch.Tensor] = []
    complete, pending = True, [value]
    seen: set[int] = set()  # of what may contain itself
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor):
            found.append(value)
            continue
        if value is None or isinstance(value, _NO_TENSORS) or id(value) in seen:
            continue
        seen.add(id(value))
        if whole:
            children = _children(value)
            if children is None or len(seen) > _MAX_OBJECTS:
                complete = False
            else:
                pending += children.values()
        elif isinstance(value, list | tuple):
            pending += value
        elif isinstance(value, dict | Mapping):
            pending += value.values()
        elif hasattr(value, "__dataclass_fields__"):
            names = value.__dataclass_fields__
            pending += (getattr(value, name, None) for name in names)
    return found, complete


is_transformed = torch._C._are_functorch_transforms_active  # by torch.func


def recorded(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What autograd knows to have been made of tensors and their tangents, which transforms of
    torch.func hand out wrapped."""
    found, pending = [], [*tensors]
    while pending:
        tensor = pending.pop()
        tangent = forward_ad.unpack_dual(tensor).tangent
        if tangent is not None:
            pending.append(tangent)
        if tensor.grad_fn is not None:
            found.append(tensor)
        elif functorch.is_functorch_wrapped_tensor(tensor):
            pending.append(functorch.get_unwrapped(tensor))
    return found


def cast_in(inputs: Any, cast: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The inputs with their tensors cast, also in dataclasses; those that change are copied."""
    made: dict[int, Any] = {}  # by the original's id

    def cast_any(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return cast(value)
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return value
        if id(value) not in made:
            made[id(value)] = value
            if any(cast(tensor) is not tensor for tensor in tensors_in(value)[0]):
                made[id(value)] = copied = copy.copy(value)
                for field in dataclasses.fields(value):
                    if hasattr(value, field.name):
                        inside = tree_map_only(object, cast_any, getattr(value, field.name))
                        object.__setattr__(copied, field.name, inside)
        return made[id(value)]

    return tree_map_only(object, cast_any, inputs)


def _children(value: Any) -> Mapping[Any, Any] | None:
    """The objects that an object refers to, by key, index or attribute; None if it hides them."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, _ITEMS):
        return dict(enumerate(value))
    if isinstance(value, _CLOSED):
        return None
    kind: Any = type(value)
    slots = _slots_of(kind)
    if not slots and not hasattr(value, "__dict__"):
        return None
    attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return attributes | getattr(value, "__dict__", {})


@functools.lru_cache(maxsize=1024)
def _slots_of(kind: type) -> tuple[str, ...]:
    """The attributes of an object of that class that are not in its ``__dict__``."""
    found: list[str] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        found += (
            f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") else name
            for name in ((slots,) if isinstance(slots, str) else slots)
            if name not in {"__dict__", "__weakref__"}
        )
    return tuple(found)


def with_copies(
    value: Any, copies: Mapping[int, torch.Tensor], around: frozenset[int] = frozenset()
) -> Any:
    """The value with other tensors in the place of those whose id is in `copies`.

    What holds one of them is copied too, since the module may have kept it. `around`: the objects
    that led here.
    """
    if isinstance(value, torch.Tensor):
        return copies.get(id(value), value)
    if value is None or isinstance(value, _NO_TENSORS) or id(value) in around:
        return value
    around |= {id(value)}
    changed = {}
    for key, child in (_children(value) or {}).items():
        replacement = with_copies(child, copies, around)
        if replacement is not child:
            changed[key] = replacement
    if not changed:
        return value
    if isinstance(value, tuple | set | frozenset):
        items = [changed.get(index, item) for index, item in enumerate(value)]
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    result = copy.copy(value)
    for key, replacement in changed.items():
        if isinstance(value, Mapping | list | deque):
            result[key] = replacement
        else:
            object.__setattr__(result, key, replacement)
    return result


# --- copies of gathered parameters in autocast's dtype ---
#
# Autocast casts a weight for each product and autograd saves the result, not the weight: of all
# modules together that is the whole model in 16 bits on every rank. Here the copy is made where the
# module reads its weight, so that its memory can go and come with the call that holds the unit. The
# numbers are autocast's, which leaves a weight of its dtype as it is.

_told: weakref.WeakSet[Any] = weakref.WeakSet()


def on_autocast(hooks: Any) -> None:
    """Calls their `autocast_begins` from here on: nothing has to look for autocast at each read."""
    _told.add(hooks)
    _replace_enter()


@functools.cache
def _replace_enter() -> None:
    enter = torch.autocast.__enter__

    @functools.wraps(enter)
    def enter_and_tell(autocast: torch.autocast) -> Any:
        entered = enter(autocast)
        for hooks in list(_told):
            hooks.autocast_begins()
        return entered

    torch_seam.replace(torch.autocast, "__enter__", enter_and_tell)


class _Copy:
    """A parameter that was cast: it has memory while calls hold it, for forward or backward."""

    def __init__(self, parameter: nn.Parameter, dtype: torch.dtype) -> None:
        self._parameter = parameter
        self.tensor = parameter.to(dtype)
        # Shares the memory, but not the count of changes by which autograd notices them.
        self._values = self.tensor.data
        self._holders = 0
        self._is_empty = False

    def hold(self) -> None:
        """While the parameter is full."""
        self._holders += 1
        if self._is_empty:
            self._values.untyped_storage().resize_(self._values.nbytes)
            self._values.copy_(self._parameter.detach())
            self._is_empty = False

    def release(self) -> None:
        self._holders -= 1
        if self._holders > 0:
            return
        if self._values.is_cuda:  # which may be another stream than the one it was made on
            self._values.record_stream(torch.cuda.current_stream(self._values.device))
        self._values.untyped_storage().resize_(0)
        self._is_empty = True


Casts = dict[tuple[nn.Parameter, torch.dtype, bool], _Copy]


class AutocastCopies:
    """The copies that one call of a module holds, of those of the whole forward (`known`): a
    parameter is cast once for all calls in it, as autocast does."""

    __slots__ = ("_known", "_own")

    def __init__(self, known: Casts) -> None:
        self._known = known
        self._own: Casts = {}

    def get(self, parameter: nn.Parameter, dtype: torch.dtype) -> torch.Tensor:
        key = parameter, dtype, torch.is_grad_enabled()
        if key not in self._own:
            if key not in self._known:
                self._known[key] = _Copy(parameter, dtype)
            self._own[key] = self._known[key]
            self._own[key].hold()
        return self._own[key].tensor

    def hold(self) -> None:
        """For backward, once the parameters are full."""
        for cast in self._own.values():
            cast.hold()

    def release(self) -> None:
        for cast in self._own.values():
            cast.release()

    def end_forward(self) -> None:
        self.release()
        # Those without a graph are for no backward.
        self._own = {key: cast for key, cast in self._own.items() if key[2]}

    def let_go(self) -> None:
        """Leaves them as they are for as long as autograd has them."""
        self._own.clear()
