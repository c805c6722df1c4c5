#!/usr/bin/env python3
"""Writes docs/deepspeed_names.md: which of DeepSpeed's public names work through the stand-in.

PYTHONPATH=build/release/python python scripts/deepspeed_page.py > docs/deepspeed_names.md
"""

import importlib
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import zerorun.compat

zerorun.compat.install()
warnings.simplefilter("ignore")

from deepspeed import _names  # noqa: E402 - the stand-in, after install()
from deepspeed._finder import full  # noqa: E402
from deepspeed._placeholders import hint_of, is_placeholder  # noqa: E402

HEAD = """\
# DeepSpeed's names in zerorun

Everything public in DeepSpeed 0.19.8, found by AST (`scripts/deepspeed_names.py`), and what it is
in scripts that run on [zerorun's stand-in](python.md): it works, or it imports and raises
NotImplementedError when it is used, with the last column in its message. Every module imports.
`scripts/deepspeed_page.py` writes this page, and `tests/python/test_compat.py` compares.

{counts}

| module | works | raises when used | instead |
|---|---|---|---|
"""


@dataclass
class Row:
    """What a module's own names are, those that it passes on left out."""

    works: list[str] = field(default_factory=list)
    constants: int = 0
    raises: list[str] = field(default_factory=list)


def row_of(module: str) -> Row:
    names = _names.names_of(module)
    loaded, row = importlib.import_module(full(module)), Row()
    row.constants = len(names.literals)
    for name in sorted(names.own() - names.literals.keys()):
        value = getattr(loaded, name)
        if is_placeholder(value):
            row.raises.append(name)
            continue
        row.works.append(name)
        for member in names.classes.get(name, []):
            works = not is_placeholder(getattr(value, member))
            (row.works if works else row.raises).append(f"{name}.{member}")
    return row


def cell(names: list[str], constants: int = 0) -> str:
    """Names with the members of a class behind it."""
    groups: dict[str, list[str]] = {}
    for name in names:
        owner, _, member = name.partition(".")
        groups.setdefault(owner, []).extend([member] if member else [])
    texts = [
        f"`{owner}`" + (f" ({', '.join(f'`{m}`' for m in members)})" if members else "")
        for owner, members in groups.items()
    ]
    return ", ".join([*texts, *([f"{constants} constants"] if constants else [])])


def package_of(module: str) -> str:
    """The part of the package that one row stands for where nothing works."""
    return ".".join(module.split(".")[:2])


def rows() -> Iterator[tuple[str, Row]]:
    for module in _names.modules():
        row = row_of(module)
        if row.works or row.raises or row.constants:
            yield module, row


def page() -> str:
    found = dict(rows())
    serving = {package_of(module) for module, row in found.items() if row.works}
    lines, absent = [], {}
    for module, row in found.items():
        if package_of(module) not in serving:
            absent.setdefault(package_of(module), []).append(row)
            continue
        hint = hint_of(full(module)) if row.raises else ""
        lines.append(
            f"| `{full(module)}` | {cell(row.works, row.constants)} | {cell(row.raises)} | {hint} |"
        )
    for package, parts in absent.items():
        constants = sum(row.constants for row in parts)
        count = sum(len(row.raises) for row in parts)
        lines.append(
            f"| `{full(package)}` ({len(parts)} modules) | {cell([], constants)} | "
            f"all {count} names | {hint_of(full(package))} |"
        )
    total = [sum(len(row.works) for row in found.values())]
    total.append(sum(row.constants for row in found.values()))
    total.append(sum(len(row.raises) for row in found.values()))
    counts = (
        f"{len(list(_names.modules()))} modules; {total[0]} classes, functions and members work, "
        f"{total[1]} constants have DeepSpeed's values, {total[2]} names raise."
    )
    return HEAD.format(counts=counts) + "\n".join(sorted(lines)) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
