"""What a torch optimizer does, found out by running a copy of it on a small parameter."""

import collections
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zerorun import _C
from zerorun import torch_seam as seam
from zerorun.shards.torch_optimizer import SERVED, first_states

_SHAPE = (16, 24)
_CUT = 152  # elements of the first part
_STEPS = 30  # some begin to look at whole tensors after 25
# The differences that rounding makes between equal updates: of the largest change, and of values
# below 0.5. An update that depends on other elements differs by far more.
_RELATIVE, _ABSOLUTE = 1e-4, 6e-8
_LEAST_DECAY = 0.1  # of a group that has weight decay: its usual values are below what shows
# Attributes that a copy, which runs by itself, does without: hooks, a step that a scheduler has
# wrapped, and methods that are an engine's.
_HOOKS = (seam.STEP_PRE_HOOKS, seam.STEP_POST_HOOKS)
_LEFT_OUT = (*SERVED, *_HOOKS)

# Of these a result may be smaller and yet says nothing of all elements.
_SELECTS = {"index", "masked_select", "new_empty", "new_full", "new_ones", "new_zeros"}


def check_elementwise(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Raises ConfigError for an optimizer that needs whole parameters, all of them, or a closure.

    A copy of it, with the hyperparameters of each group, steps a small matrix on `device` once
    as a whole and once as two flat parts that know nothing of each other, as the shards of two
    ranks do.
    Some measure whole tensors long before it shows in what they change (Prodigy, Shampoo, SWATS),
    so a step that does is refused too. The optimizer that was given stays as it is.
    """
    name = type(optimizer).__name__
    tried: set[str] = set()
    for index, group in enumerate(optimizer.param_groups):
        settings = repr({key: value for key, value in group.items() if key != "params"})
        if settings in tried or not group["params"]:
            continue
        tried.add(settings)
        watch = _WholeTensors()
        try:
            whole = _changes(optimizer, index, device, watch, parts=False)
        except Exception as error:  # of whatever the program has brought
            raise _C.ConfigError(
                f"{name} cannot run on shards: its step on a small matrix failed with "
                f"{type(error).__name__}: {error}; use another, or the configuration's Muon or Lamb"
            ) from error
        if watch.noticed is not None:
            raise _needs_whole(name, f"its step takes '{watch.noticed}' of whole tensors")
        try:
            cut = _changes(optimizer, index, device, watch, parts=True)
        except Exception as error:  # likewise
            raise _needs_whole(name, f"flat parts give {type(error).__name__}: {error}") from error
        largest = whole.abs().max().item()
        if largest == 0:
            raise _C.ConfigError(
                f"{name} cannot be tried: {_STEPS} of its steps change nothing of a small matrix. "
                "Give it a learning rate above 0; a scheduler may begin at 0"
            )
        if not torch.allclose(cut, whole, rtol=0, atol=_RELATIVE * largest + _ABSOLUTE):
            raise _needs_whole(name, "a matrix that is cut in two is updated differently")


def state_names(optimizer: torch.optim.Optimizer, settings: list[dict[str, Any]]) -> list[set[str]]:
    """By group: what the optimizer keeps of a parameter from the first step on, if it had these
    hyperparameters."""
    names = []
    devices = (p.device for group in optimizer.param_groups for p in group["params"])
    device = next(devices, torch.device("cpu"))
    for index, values in enumerate(settings):
        parameter = nn.Parameter(torch.ones(2, dtype=torch.float32, device=device))
        parameter.grad = torch.ones_like(parameter)
        twin = _twin(optimizer, index, parameter)
        twin.param_groups[index].update(values)
        with torch.random.fork_rng(devices=[]), seam.without_hooks_of_all():
            type(optimizer).step(twin)
        names.append({key for key, value in twin.state[parameter].items() if value is not None})
    return names


def _needs_whole(name: str, why: str) -> _C.ConfigError:
    return _C.ConfigError(
        f"{name} needs whole parameters, which shards cannot give ({why}): use an optimizer that "
        "treats elements alike, or Lamb or Muon from the configuration"
    )


def _changes(
    optimizer: torch.optim.Optimizer,
    group: int,
    device: torch.device,
    watch: "_WholeTensors",
    *,
    parts: bool,
) -> torch.Tensor:
    """A matrix's change by some steps, flat, in multiples of the first part's largest change."""
    generator = torch.Generator().manual_seed(0)
    kind: Any = {"generator": generator, "dtype": torch.float32, "device": "cpu"}
    start = torch.randn(_SHAPE, **kind) / 16
    noise = torch.randn(_STEPS, *_SHAPE, **kind)
    cuts = [slice(0, _CUT), slice(_CUT, None)] if parts else [slice(None)]
    changes = []
    with torch.random.fork_rng(devices=[]):
        for cut in cuts:
            values = start.flatten()[cut] if parts else start
            parameter = nn.Parameter(values.to(device, copy=True))
            twin = _twin(optimizer, group, parameter)
            for gradient in _gradients(start, noise):
                part = gradient.flatten()[cut] if parts else gradient
                parameter.grad = part.to(device, copy=True)
                with watch, seam.without_hooks_of_all():
                    type(optimizer).step(twin)
            changes.append((parameter.detach().cpu() - values).flatten())
    return torch.cat(changes)


def _gradients(start: torch.Tensor, noise: torch.Tensor) -> Iterator[torch.Tensor]:
    """Gradients of one sign in the first part, and small and without direction in the second, so
    that what an optimizer measures of both is not what it measures of one. The first is orthogonal
    to the matrix's rows, for optimizers that look for that."""
    along = (noise[0] * start).sum(1, keepdim=True) / start.square().sum(1, keepdim=True)
    yield noise[0] - along * start
    for step in range(1, _STEPS):
        gradient = noise[step].clone()
        flat = gradient.flatten()
        flat[:_CUT] = flat[:_CUT].abs() * 4 + 1
        flat[_CUT:] /= 16
        yield flat.view(_SHAPE)


def _twin(
    optimizer: torch.optim.Optimizer, group: int, parameter: nn.Parameter
) -> torch.optim.Optimizer:
    """A copy with `parameter` as the only one, and without states of steps."""
    twin = object.__new__(type(optimizer))
    # Whatever refers to the optimizer, its states or a parameter refers to the copy's.
    memo: dict[int, Any] = {id(optimizer): twin, id(optimizer.state): collections.defaultdict(dict)}
    memo |= {id(p): parameter for g in optimizer.param_groups for p in g["params"]}
    attributes = vars(twin)
    for key, value in vars(optimizer).items():
        if key in _LEFT_OUT:
            continue
        try:
            attributes[key] = copy.deepcopy(value, memo)
        except Exception:  # something that cannot be copied is shared
            attributes[key] = value
    for hooks in _HOOKS:
        if hasattr(optimizer, hooks):
            attributes[hooks] = collections.OrderedDict()
    for index, copied in enumerate(attributes["param_groups"]):
        copied["params"] = [parameter] if index == group else []
        _enlarge(copied, vars(optimizer).get("defaults", {}))
    twin.state.update(first_states(optimizer, parameter))
    train = getattr(type(optimizer), "train", None)
    if callable(train):  # some begin in evaluation
        train(twin)
    return twin


def _enlarge(group: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Gives a group a learning rate, which a scheduler may have set to 0, and a weight decay, if it
    has one, whose effects show within a few steps."""
    rate = group.get("lr")
    if isinstance(rate, float | int | torch.Tensor):
        rates = (group.get("initial_lr"), rate, defaults.get("lr"))
        found = next((float(r) for r in rates if r is not None and float(r) != 0), 1e-3)
        group["lr"] = torch.full_like(rate, found) if isinstance(rate, torch.Tensor) else found
    decay = group.get("weight_decay")
    if isinstance(decay, float) and decay > 0:
        group["weight_decay"] = max(decay, _LEAST_DECAY)


class _WholeTensors(TorchDispatchMode):
    """Within, `noticed` becomes the first operation whose result has fewer numbers than it took.

    Such are norms, means, and the products of a matrix with itself; what treats elements alike does
    none of these. Comparisons and kernels of the program's own stay unnoticed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noticed: str | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        aliases = any(value.alias_info is not None for value in func._schema.returns)
        if func.namespace == "aten" and not aliases and name not in _SELECTS:
            taken = max((_numel_in(each) for each in (*args, *(kwargs or {}).values())), default=0)
            if 0 < _numel_in(result) < taken:
                self.noticed = self.noticed or name
        return result


def _numel_in(values: Any) -> int:
    """Counts elements of floating-point tensors in a tensor, a list of them, or anything else."""
    leaves = tree_leaves(values)
    tensors = (each for each in leaves if isinstance(each, torch.Tensor))
    return sum(tensor.numel() for tensor in tensors if tensor.is_floating_point())
