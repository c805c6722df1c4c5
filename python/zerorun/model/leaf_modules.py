"""Leaf modules: those that stage 3 gathers as a whole, with all modules inside them.

On GPUs all ranks take part in each gather. Where ranks run different parts of a module (the experts
that their tokens are routed to), the module as a whole is what they all use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from zerorun import _C
from zerorun.config import given_values

__all__ = ["DEFAULT_CLASSES", "is_leaf", "mark_by_class", "mark_by_name", "mark_by_suffix"]
__all__ += ["mark_configured", "set_leaf"]

_ATTRIBUTE = "_z3_leaf"  # DeepSpeed's, which scripts know; copies of a module have it too
_SECTION = "zero_optimization/leaf_module"

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


def mark_configured(model: nn.Module, parsed: _C.ParsedConfig) -> None:
    """Marks what the configuration's leaf_module names.

    Raises ConfigError for a name or suffix that no module has. Classes may be missing: one
    configuration serves several models.
    """
    given = given_values(parsed, _SECTION)
    classes = given.get("classes")
    mark_by_class(model, DEFAULT_CLASSES if classes is None else classes)
    for key, mark in (("names", mark_by_name), ("name_suffixes", mark_by_suffix)):
        _, missing = mark(model, given.get(key) or [])
        if missing:
            raise _C.ConfigError(
                f"/{_SECTION}/{key}: the model has no module for {', '.join(missing)}; see its "
                "named_modules()"
            )
