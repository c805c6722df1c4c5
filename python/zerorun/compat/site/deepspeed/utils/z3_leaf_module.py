"""Modules that stage 3 gathers as a whole."""

import torch
from torch import nn
from zerorun.model.partition import partition_of
from zerorun.model.units import is_leaf, mark_by_class, mark_by_name, mark_by_suffix, set_leaf

z3_leaf_module = is_leaf
set_z3_leaf_module = set_leaf


def z3_leaf_parameter(model: torch.nn.Parameter) -> bool:
    """True if an engine gathers the parameter with a leaf module."""
    unit = getattr(partition_of(model), "unit", None)
    return unit is not None and is_leaf(unit.module)


def get_z3_leaf_modules(model: nn.Module) -> list[nn.Module]:
    """The marked modules of a model."""
    return [module for module in model.modules() if is_leaf(module)]


def set_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: list[type | str], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """Marks the modules of these classes; before initialize. ValueError if there is none."""
    return _mark(model, leaf_module_classes, True, raise_if_not_found)


def unset_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: list[type | str], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """Takes the mark off the modules of these classes."""
    return _mark(model, leaf_module_classes, False, raise_if_not_found)


def _mark(
    model: nn.Module, classes: list[type | str], flag: bool, raise_if_not_found: bool
) -> list[nn.Module]:
    found = mark_by_class(model, classes, flag)
    if not found and raise_if_not_found:
        raise ValueError(f"No modules of type {classes} found in model {type(model).__name__}")
    return found


def set_z3_leaf_modules_by_name(
    model: nn.Module, module_names: list[str], flag: bool = True, raise_if_not_found: bool = True
) -> tuple[list[nn.Module], list[str]]:
    """Marks modules by name; returns them and the names that are not there."""
    found, missing = mark_by_name(model, module_names, flag)
    if missing and raise_if_not_found:
        raise ValueError(f"No modules named {missing} found in model {type(model).__name__}")
    return found, missing


def set_z3_leaf_modules_by_suffix(
    model: nn.Module,
    module_name_suffixes: list[str],
    flag: bool = True,
    raise_if_not_found: bool = True,
) -> tuple[list[nn.Module], list[str]]:
    """Marks modules by how their names end; returns them and the suffixes that none has."""
    found, missing = mark_by_suffix(model, module_name_suffixes, flag)
    if missing and raise_if_not_found:
        raise ValueError(
            f"No modules matching suffixes {missing} found in model {type(model).__name__}"
        )
    return found, missing
