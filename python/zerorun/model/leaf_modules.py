"""Leaf modules: those that stage 3 gathers as a whole, with all modules inside them.

On GPUs all ranks take part in each gather. Where ranks run different parts of a module (the experts
that their tokens are routed to), the module as a whole is what they all use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn
from torch.nn.modules import container as containers

from zerorun import _C
from zerorun.config import given_values, value_of

_ATTRIBUTE = "_z3_leaf"  # DeepSpeed's, which scripts know; copies of a module have it too
_SECTION = "zero_optimization/leaf_module"
_THRESHOLD = "/zero_optimization/stage3_module_granularity_threshold"
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
    threshold = value_of(parsed, _THRESHOLD, 0)
    if threshold > 0:
        mark_fine_grained(model, threshold)
    for key, mark in (("names", mark_by_name), ("name_suffixes", mark_by_suffix)):
        _, missing = mark(model, given.get(key) or [])
        if missing:
            raise _C.ConfigError(
                f"/{_SECTION}/{key}: the model has no module for {', '.join(missing)}; see its "
                "named_modules()"
            )
