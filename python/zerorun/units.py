"""Units: the modules whose parameters are gathered together at stage 3.

Elements of a ``ModuleList`` (the blocks of a transformer, the experts of a mixture) are units, the
innermost ones where lists are nested. Parameters outside of them form one unit per module that owns
them, except small ones, which join the unit around them. A leaf module is one unit with all that is
inside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import nn

from zerorun.leaf_modules import is_leaf

__all__ = ["Unit", "find_units"]

_SMALL = 16384  # elements


@dataclass
class Unit:
    """A module and the parameters (owned by it or by modules inside) that are gathered with it."""

    name: str
    module: nn.Module
    parameters: list[nn.Parameter] = field(default_factory=list)


def _lists_of(module: nn.Module) -> list[nn.ModuleList | nn.ModuleDict]:
    return [
        child
        for child in module.modules()
        if isinstance(child, nn.ModuleList | nn.ModuleDict) and _blocks_of(child)
    ]


def _blocks_of(container: nn.Module) -> list[nn.Module]:
    return [child for child in container.children() if any(True for _ in child.parameters())]


class _Finder:
    def __init__(self) -> None:
        self.units: dict[str, Unit] = {}
        self.unit_of: dict[nn.Parameter, Unit] = {}

    def visit(self, name: str, module: nn.Module, around: Unit, whole: bool) -> None:
        """`around`: the unit that small parameters join; `whole`: all parameters do."""
        if is_leaf(module):
            self._take(module.parameters(), self.unit(name, module))
            return
        own = [p for p in module.parameters(recurse=False) if p not in self.unit_of]
        if own:
            large = not whole and sum(_numel(p) for p in own) >= _SMALL
            self._take(own, self.unit(name, module) if large else around)
        for child_name, child in module.named_children():
            path = f"{name}.{child_name}" if name else child_name
            if isinstance(module, nn.ModuleList | nn.ModuleDict):
                self.visit(path, child, self.unit(path, child), not _lists_of(child))
            else:
                self.visit(path, child, around, whole)

    def _take(self, parameters: Iterable[nn.Parameter], unit: Unit) -> None:
        for parameter in parameters:
            if parameter not in self.unit_of:
                unit.parameters.append(parameter)
                self.unit_of[parameter] = unit

    def unit(self, name: str, module: nn.Module) -> Unit:
        return self.units.setdefault(name, Unit(name, module))


def _numel(parameter: nn.Parameter) -> int:
    return getattr(parameter, "ds_numel", parameter.numel())


def find_units(model: nn.Module) -> list[Unit]:
    """The units of a model, in its order; every parameter is in exactly one."""
    finder = _Finder()
    finder.visit("", model, finder.unit("", model), whole=False)
    return [unit for unit in finder.units.values() if unit.parameters]
