"""Unit policies: the argument `units`, which selects the modules gathered as a whole at stage 3."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from typing import TypeAlias

from torch import nn

from zerorun import _C

_Choice: TypeAlias = type[nn.Module] | str
UnitRule: TypeAlias = Callable[[str, nn.Module], bool]
UnitPolicy: TypeAlias = _Choice | Iterable[_Choice] | UnitRule


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
    parts, patterns = path.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _check_met(model: nn.Module, rule: UnitRule, what: str) -> None:
    if not any(rule(path, module) for path, module in model.named_modules() if path):
        kinds = sorted({type(module).__name__ for module in model.modules()})
        raise _C.ConfigError(
            f"{what} is met by no module inside of the model, which has {', '.join(kinds[:20])}"
        )
