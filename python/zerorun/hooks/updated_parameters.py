"""Stages 1 and 2: gathers of updated parameters that continue during the next forward.

After a step, a module's parameters are waited for when the module is called, or when somebody looks
one of them up in it: by attribute, ``parameters()``, ``state_dict()``, or a copy of the module.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from torch import nn

from zerorun import _C
from zerorun.model.model_layout import ModelLayout
from zerorun.model.uncopied import ModuleHook
from zerorun.model.units import COMPILED, modules_within


class _Parameters(dict[str, Any]):
    """A module's `_parameters`, and how to wait for them."""

    __slots__ = ("use",)
    use: Callable[[], None]

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _after_use(name: str) -> Any:
    method = getattr(dict, name)

    def look_up(self: _Parameters, *args: Any) -> Any:
        self.use()
        return method(self, *args)

    return look_up


class _Pending(_Parameters):
    """The same while gathers may run. They are the other class again from the first look on, which
    costs nothing, and which torch.compile's code may expect."""

    __slots__ = ()

    # By which one comes to what is in a dictionary.
    for _name in (
        *("__getitem__", "__iter__", "__repr__", "get", "items"),
        *("pop", "popitem", "setdefault", "values"),
    ):
        locals()[_name] = _after_use(_name)


def _inside(module: nn.Module, ends: Container[nn.Module]) -> Iterator[nn.Module]:
    yield module
    for child in module.children():
        if child not in ends:
            yield from _inside(child, ends)


class UpdatedParameters:
    """What waits for the updated parameters of one engine's model."""

    def __init__(self, model: nn.Module, core: _C.Engine, layout: ModelLayout) -> None:
        self._core = core
        self._pending = 0  # modules whose parameters may still be gathered
        self._watched: dict[nn.Module, _Parameters] = {}
        for module in model.modules():
            own = module._parameters.values()
            ids = [layout.ids[p] for p in own if p is not None and p in layout.ids]
            if ids:
                module._parameters = self._watched[module] = _Parameters(module._parameters)
                self._watched[module].use = self._use(self._watched[module], ids)
        # A block waits for all that is in it, since it may be compiled as one.
        units = {unit.module: unit for unit in layout.units if unit.name}
        blocks = {*units, *(getattr(module, COMPILED, None) for module in units)}
        within = modules_within(units.values())
        self._handles = []
        for module in model.modules():
            # PyTorch's own modules with parameters may read those of a child without calling it.
            torchs = type(module).__module__.startswith("torch.nn.") and module._parameters
            whole = module in blocks or torchs
            modules = list(_inside(module, units)) if whole else [module]
            watched = [self._watched[m] for m in modules if m in self._watched]
            if watched and module not in within:
                hook = ModuleHook(self._before_forward, watched)
                self._handles.append(module.register_forward_pre_hook(hook, prepend=True))

    def _use(self, parameters: _Parameters, ids: list[int]) -> Callable[[], None]:
        def use() -> None:
            if type(parameters) is _Pending:
                self._core.use_parameters(ids)
                parameters.__class__ = _Parameters  # type: ignore[assignment]
                self._pending -= 1

        return use

    def _before_forward(self, watched: Sequence[_Parameters], *_call: Any) -> None:
        if self._pending > 0:
            for parameters in watched:
                parameters.use()

    def expect(self) -> None:
        """From here on, parameters are waited for before they are read. After a step."""
        for parameters in self._watched.values():
            parameters.__class__ = _Pending
        self._pending = len(self._watched)

    def finish(self) -> None:
        """Waits for all of them."""
        self._core.finish_updates()
        for parameters in self._watched.values():
            parameters.__class__ = _Parameters
        self._pending = 0

    def remove(self) -> None:
        """Waits for all, and takes the hooks off the model, also where that fails."""
        try:
            self.finish()
        finally:
            for handle in self._handles:
                handle.remove()
            for module, parameters in self._watched.items():
                parameters.__class__ = _Parameters
                module._parameters = dict(parameters)
