"""Where a stage-3 engine's hooks go: on units, on what is not inside of one, and on modules that
use parameters which they do not own."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from zerorun import _C
from zerorun.hooks.shared_unit import SharedUnit
from zerorun.model.partition import partition_of
from zerorun.model.units import COMPILED, Unit


def gathered_at(
    model: nn.Module, units: Iterable[Unit], unit_of: Mapping[nn.Parameter, SharedUnit]
) -> dict[nn.Module, list[SharedUnit]]:
    """The modules whose calls gather something, and what: the units' modules, and those with
    parameters that no call of a unit's module around them has gathered. The model itself is one of
    them, for what its forward reads of others."""
    names = {unit.module: unit.name for unit in units if unit.name}
    # A compiled model calls what the wrapper of a compiled block contains, without the wrapper.
    for module, name in list(names.items()):
        inner = getattr(module, COMPILED, None)
        if inner is not None:
            names[inner] = name
    found: dict[nn.Module, list[SharedUnit]] = {model: []}
    seen: set[tuple[nn.Module, frozenset[SharedUnit]]] = set()

    def visit(module: nn.Module, held: frozenset[SharedUnit]) -> None:
        if (module, held) in seen:
            return
        seen.add((module, held))
        name = names.get(module)
        own = _gathered_by(module, name, unit_of)
        if name or not held.issuperset(own) or (own and _reads_unnoticed(module)):
            found[module] = own
        if name and _can_be_called(module):
            held |= frozenset(own)
        for child in module.children():
            visit(child, held)

    visit(model, frozenset())
    return found


def _gathered_by(
    module: nn.Module, name: str | None, unit_of: Mapping[nn.Parameter, SharedUnit]
) -> list[SharedUnit]:
    """For a call of the module. `name`: of the unit that it is the module of."""
    parameters: Sequence[nn.Parameter] = list(module.parameters(recurse=name is not None))
    units = dict.fromkeys(unit_of[p] for p in parameters if p in unit_of)
    # Forward may skip the units further inside (experts), which have their own hooks.
    return [
        unit for unit in units if unit.sharded and not (name and unit.name.startswith(name + "."))
    ]


def _can_be_called(module: nn.Module) -> bool:
    """False for containers, whose elements are called on their own."""
    return "forward" in vars(module) or type(module).forward is not nn.Module.forward


def _reads_unnoticed(module: nn.Module) -> bool:
    """True where a call without the unit's would not be noticed: RNNs have a list of their
    parameters, and a generator reads them when its module runs no more."""
    return isinstance(module, nn.RNNBase) or inspect.isgeneratorfunction(module.forward)


# --- parameters that a module uses in its forward but does not own ---

_registered: weakref.WeakKeyDictionary[nn.Module, list[nn.Parameter]] = weakref.WeakKeyDictionary()


def register_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Declares that `module` uses `parameter` in forward although another module owns it.

    The parameter is then gathered for forward and backward of `module`, also of a call that is
    running. Accesses through an
    attribute of the owning module are detected without this; call it if the parameter is reached in
    another way. May be called before and after zerorun.initialize. Raises ConfigError for arguments
    of other types.
    """
    if not isinstance(module, nn.Module) or not isinstance(parameter, nn.Parameter):
        raise _C.ConfigError(
            f"register_external_parameter: got {type(module)} and {type(parameter)}, expected a "
            "module and a parameter"
        )
    known = _registered.setdefault(module, [])
    if not any(p is parameter for p in known):
        known.append(parameter)
    partition = partition_of(parameter)
    if partition is not None:
        partition.watch(module)


def unregister_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Undoes :func:`register_external_parameter`."""
    known = _registered.get(module, [])
    known[:] = [p for p in known if p is not parameter]


registered = _registered.data  # a plain dictionary, looked at before each call of a module


def external_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The registered ones that an engine shards."""
    known = _registered.get(module, ())
    found = [(p, partition_of(p)) for p in known]
    return [p for p, partition in found if partition is not None and partition.in_engine]
