"""Units: the modules whose parameters are gathered together at stage 3.

Elements of a ``ModuleList`` (the blocks of a transformer, the experts of a mixture) are units, the
innermost ones where lists are nested; and so are modules of one class side by side in any other
module. Parameters outside of them form one unit per module that owns them, except small ones, which
join the unit around them. A leaf module is one unit with all that is inside it. A program may name
its units instead.
"""

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import nn
from torch.nn.modules import container as containers

from zerorun import _C
from zerorun.config import given_values, value_of

COMPILED = "_orig_mod"  # where torch.compile(module) keeps the module
_WRAPPERS = {COMPILED, "_checkpoint_wrapped_module"}  # and checkpoint_wrapper(module)
_SMALL = 16384  # elements

_Choice: TypeAlias = type[nn.Module] | str
UnitRule: TypeAlias = Callable[[str, nn.Module], bool]
UnitPolicy: TypeAlias = _Choice | Iterable[_Choice] | UnitRule


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
        if isinstance(child, nn.ModuleList | nn.ModuleDict) and _is_composite(child)
    ]


def _is_composite(module: nn.Module) -> bool:
    return any(True for child in module.children() for _ in child.parameters())


def _repeated(container: nn.Module) -> list[nn.Module]:
    """The children that are of one class with another, and made of modules themselves.

    A Sequential is no such class: what it holds may repeat.
    """
    children = [
        child
        for child in container.children()
        if _is_composite(child) and type(child) is not nn.Sequential
    ]
    count = Counter(type(child) for child in children)
    return [child for child in children if count[type(child)] > 1]


class _Finder:
    def __init__(self, rule: UnitRule | None) -> None:
        self.units: dict[str, Unit] = {}
        self.unit_of: dict[nn.Parameter, Unit] = {}
        self._rule = rule

    def visit(
        self, name: str, module: nn.Module, around: Unit, whole: bool, in_list: bool = False
    ) -> None:
        """`around`: the unit that small parameters join; `whole`: all parameters do; `in_list`:
        the module is inside of a list's element, where only further lists have units."""
        if is_leaf(module):
            self._take(module.parameters(), self.unit(name, module))
            return
        own = [p for p in module.parameters(recurse=False) if p not in self.unit_of]
        if own:
            large = not whole and sum(getattr(p, "ds_numel", p.numel()) for p in own) >= _SMALL
            self._take(own, self.unit(name, module) if large else around)
        is_list = isinstance(module, nn.ModuleList | nn.ModuleDict)
        repeated = [] if is_list or whole or in_list else _repeated(module)
        for child_name, child in module.named_children():
            path = f"{name}.{child_name}" if name else child_name
            if self._rule is not None:
                if self._rule(path, child):
                    self.visit(path, child, self.unit(path, child), whole=True)
                else:
                    self.visit(path, child, around, whole, in_list=True)
            elif is_list:
                self.visit(path, child, self.unit(path, child), not _lists_of(child), True)
            elif child in repeated:
                inner = _lists_of(child) or any(map(_repeated, child.modules()))
                self.visit(path, child, self.unit(path, child), not inner)
            else:
                self.visit(path, child, around, whole, in_list)

    def _take(self, parameters: Iterable[nn.Parameter], unit: Unit) -> None:
        for parameter in parameters:
            if parameter not in self.unit_of:
                unit.parameters.append(parameter)
                self.unit_of[parameter] = unit

    def unit(self, name: str, module: nn.Module) -> Unit:
        return self.units.setdefault(name, Unit(name, module))


def modules_within(units: Iterable[Unit]) -> set[nn.Module]:
    """Those inside a unit's module whose parameters are all the unit's: a call of the unit's module
    has gathered what their calls read."""
    within: set[nn.Module] = set()
    for unit in units:
        own = set(unit.parameters)
        # A compiled model calls what the wrapper of a compiled block contains, without the wrapper.
        outside = {unit.module, getattr(unit.module, COMPILED, None)}
        inside = (module for module in unit.module.modules() if module not in outside)
        within.update(module for module in inside if own.issuperset(module.parameters()))
    return within


def find_units(model: nn.Module, policy: UnitPolicy | None = None) -> list[Unit]:
    """The units of a model, in its order; every parameter is in exactly one.

    `policy`: the modules that are units, instead of those found; see :func:`unit_rule`.
    """
    finder = _Finder(None if policy is None else unit_rule(model, policy))
    finder.visit("", model, finder.unit("", model), whole=False)
    return [unit for unit in finder.units.values() if unit.parameters]


# --- what a program chooses as units ---


def unit_rule(model: nn.Module, policy: UnitPolicy) -> UnitRule:
    """Returns a function of path and module that is True if `policy` selects the module.

    A policy is a class or a name, several of them, or a function of path and module. A name is that
    of a class, or a path in which ``*`` matches one component: ``"layers.*"``. Raises ConfigError
    if a choice matches no module of `model`.
    """
    if callable(policy) and not isinstance(policy, type):
        _check_met(model, policy, f"units={getattr(policy, '__name__', policy)}")
        return policy
    if isinstance(policy, type | str) or not isinstance(policy, Iterable):
        choices = [policy]
    else:
        choices = list(policy)
    if not choices:
        raise _C.ConfigError(
            "units: got no choice, which would leave one unit, the whole model: leave units out "
            "for the default"
        )
    rules = [_rule_of(model, choice) for choice in choices]
    return lambda path, module: any(rule(path, module) for rule in rules)


def _rule_of(model: nn.Module, choice: _Choice) -> UnitRule:
    if isinstance(choice, type) and issubclass(choice, nn.Module):
        kind = choice
        rule: UnitRule = lambda _path, module: isinstance(module, kind)  # noqa: E731
    elif isinstance(choice, str):
        name = choice
        rule = lambda path, module: type(module).__name__ == name or _fits(path, name)  # noqa: E731
    else:
        raise _C.ConfigError(
            f"units: got {choice!r}, expected a class of modules, the name of one, a path such as "
            "'layers.*', or one function of (path, module)"
        )
    _check_met(model, rule, f"units: {choice!r}")
    return rule


def _fits(path: str, pattern: str) -> bool:
    """True for a path, also without its wrappers: of those of one module, the outermost's."""
    is_inside = path.rpartition(".")[2] in _WRAPPERS
    patterns = pattern.split(".")
    return any(
        len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))
        for parts in (path.split("."), [] if is_inside else plain_name(path).split("."))
    )


def _check_met(model: nn.Module, rule: UnitRule, what: str) -> None:
    if not any(rule(path, module) for path, module in model.named_modules() if path):
        kinds = sorted({type(module).__name__ for module in model.modules()})
        raise _C.ConfigError(
            f"{what} is met by no module inside of the model, which has {', '.join(kinds[:20])}"
        )


def plain_name(name: str) -> str:
    """The name without the wrappers that torch.compile and activation checkpointing put around
    modules, so that checkpoints of such models and of others are the same."""
    if not any(wrapper in name for wrapper in _WRAPPERS):
        return name
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


# --- leaf modules, which are gathered with all modules inside them ---
#
# On GPUs all ranks take part in each gather. Where ranks run different parts of a module (the
# experts that their tokens are routed to), the module as a whole is what they all use.

_ATTRIBUTE = "_z3_leaf"  # DeepSpeed's, which scripts know; copies of a module have it too
_SECTION = "zero_optimization/leaf_module"
_LARGEST = 10**9  # elements of a module that a threshold marks

DEFAULT_CLASSES = (
    "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
)


def is_leaf(module: nn.Module) -> bool:
    """True if the module is marked as a leaf."""
    return bool(getattr(module, _ATTRIBUTE, False))


def set_leaf(module: nn.Module, flag: bool = True) -> None:
    """Marks one module, or takes the mark off. It counts when the model is given to initialize."""
    setattr(module, _ATTRIBUTE, flag)


def mark_by_class(
    model: nn.Module, classes: Iterable[type | str], flag: bool = True
) -> list[nn.Module]:
    """Marks the modules of the classes, given as such, by name, or by module and name."""
    wanted = list(classes)
    kinds = tuple(kind for kind in wanted if isinstance(kind, type))
    found = []
    for module in model.modules():
        kind = type(module)
        names = (kind.__name__, f"{kind.__module__}.{kind.__qualname__}")
        if isinstance(module, kinds) or any(name in wanted for name in names):
            set_leaf(module, flag)
            found.append(module)
    return found


def mark_by_name(
    model: nn.Module, names: Sequence[str], flag: bool = True
) -> tuple[list[nn.Module], list[str]]:
    """Marks modules by their names in named_modules(); returns them and the names not found."""
    modules = dict(model.named_modules(remove_duplicate=False))
    found = list(dict.fromkeys(modules[name] for name in names if name in modules))
    for module in found:
        set_leaf(module, flag)
    return found, [name for name in names if name not in modules]


def mark_by_suffix(
    model: nn.Module, suffixes: Sequence[str], flag: bool = True
) -> tuple[list[nn.Module], list[str]]:
    """Marks modules by how their names end; returns them and the suffixes that none has."""
    names = [name for name, _ in model.named_modules()]
    ending = {suffix: [name for name in names if name.endswith(suffix)] for suffix in suffixes}
    found, _ = mark_by_name(model, [name for named in ending.values() for name in named], flag)
    return found, [suffix for suffix in suffixes if not ending[suffix]]


def mark_fine_grained(model: nn.Module, threshold: int) -> None:
    """Marks modules with at most `threshold` elements for each module in them: the outermost ones
    that have modules inside and are no container, whose own forward nobody calls."""

    def visit(module: nn.Module) -> tuple[int, int, list[nn.Module]]:
        """Modules with parameters, elements, and what is to be marked."""
        own = module.parameters(recurse=False)
        elements = sum(getattr(p, "ds_numel", p.numel()) for p in own)  # zero.Init's are empty
        count, marked = 0, []
        for child in module.children():
            modules, inside, found = visit(child)
            count, elements = count + modules, elements + inside
            marked += found
        if elements == 0:
            return 0, 0, []
        is_container = type(module).__name__ in containers.__all__
        count += not is_container
        has_children = next(module.children(), None) is not None
        is_fine = elements <= _LARGEST and elements // max(1, count) <= threshold
        if has_children and not is_container and is_fine:
            marked = [module]
        return count, elements, marked

    for module in visit(model)[2]:
        set_leaf(module)


def mark_configured(model: nn.Module, parsed: _C.ParsedConfig) -> None:
    """Marks what the configuration's leaf_module names, and what its threshold says.

    Raises ConfigError for a name or suffix that no module has. Classes may be missing: one
    configuration serves several models.
    """
    given = {
        key: [value] if isinstance(value, str) else value
        for key, value in given_values(parsed, _SECTION).items()
    }
    classes = given.get("classes")
    mark_by_class(model, DEFAULT_CLASSES if classes is None else classes)
    threshold = value_of(parsed, "/zero_optimization/stage3_module_granularity_threshold", 0)
    if threshold > 0:
        mark_fine_grained(model, threshold)
    for key, mark in (("names", mark_by_name), ("name_suffixes", mark_by_suffix)):
        _, missing = mark(model, given.get(key) or [])
        if missing:
            raise _C.ConfigError(
                f"/{_SECTION}/{key}: the model has no module for {', '.join(missing)}; see its "
                "named_modules()"
            )
