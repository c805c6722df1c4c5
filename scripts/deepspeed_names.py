#!/usr/bin/env python3
"""Lists the public names of an installed DeepSpeed, found by AST; nothing of it is imported.

    python scripts/deepspeed_names.py FOLDER > python/zerorun/compat/site/deepspeed/_names.txt

FOLDER holds the package `deepspeed`. A module is a line without indentation, and below it stand

    class NAMES...                 classes
    class NAME: MEMBERS...         those of which zerorun has its own: with what they and their
                                   bases in the module define
    def NAMES...                   functions
    value NAMES...                 other names
    NAME = LITERAL                 names whose value is a number, a flag or one word
    from MODULE NAMES...           what a module takes from other ones, and so passes on; NEW=OLD
                                   where the name differs, nothing behind the `=` for the module
                                   itself, `*` for all

Names are public if they and the modules on the way to them have no leading underscore; modules
stand without the package's own name.
"""

import ast
import operator
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = "deepspeed"
# Classes whose members are listed: scripts get instances of them without making them.
WITH_MEMBERS = {
    "CudaRNGStatesTracker",
    "DeepSpeedAccelerator",
    "DeepSpeedConfig",
    "DeepSpeedCPUAdam",
    "DeepSpeedDataLoader",
    "DeepSpeedEngine",
    "FusedAdam",
    "Init",
    "LRRangeTest",
    "OffloadDeviceEnum",
    "OffloadStateTypeEnum",
    "OneCycle",
    "RepeatingLoader",
    "SynchronizedWallClockTimer",
    "ThroughputTimer",
    "WarmupCosineLR",
    "WarmupDecayLR",
    "WarmupLR",
    "ZeroParamStatus",
    "ZeroParamType",
    "ZeroStageEnum",
}
# Modules whose functions programs call although they begin with an underscore.
WITH_PRIVATE_FUNCTIONS = {"deepspeed.utils.groups"}
ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}
WORD = re.compile(r"[\w./%:-]{0,60}")


@dataclass
class Names:
    """The public names of one module."""

    is_package: bool
    classes: dict[str, tuple[set[str], list[str]]] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    values: dict[str, str | None] = field(default_factory=dict)  # None: not a plain literal
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)  # name: (module, name there)
    stars: list[str] = field(default_factory=list)

    def own(self) -> set[str]:
        return {*self.classes, *self.functions, *self.values}


def is_public(name: str) -> bool:
    return not name.startswith("_")


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those that run at import, with the branches of conditions."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from statements(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body)


def assigned(node: ast.stmt) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    for target in targets:
        for name in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(name, ast.Name) and is_public(name.id):
                yield name.id


class _Known(ast.NodeTransformer):
    """Puts values in the place of names and of arithmetic on numbers."""

    def __init__(self, values: dict[str, str | None]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self._values.get(node.id)
        return ast.parse(value, mode="eval").body if value is not None else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        sides = (node.left, node.right)
        operation = ARITHMETIC.get(type(node.op))
        if operation is None or not all(isinstance(side, ast.Constant) for side in sides):
            return node
        left, right = (side.value for side in sides)
        if not all(isinstance(side, int | float) for side in (left, right)):
            return node
        return ast.Constant(operation(left, right))


def literal(node: ast.stmt, values: dict[str, str | None]) -> str | None:
    """The value of an assignment as it can be read back, if it says no more than a name does;
    `values` are those of the module until here."""
    value = getattr(node, "value", None)
    try:
        found = ast.literal_eval(_Known(values).visit(value)) if value is not None else ...
    except ValueError:
        return None
    if isinstance(found, str):
        return repr(found) if WORD.fullmatch(found) else None
    return repr(found) if found is None or isinstance(found, bool | int | float) else None


def members(node: ast.ClassDef) -> set[str]:
    found = set()
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and is_public(item.name):
            found.add(item.name)
        found.update(assigned(item))
    return found


def origin(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """The absolute name of the module that an import takes names from."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join([*parts, *([node.module] if node.module else [])])


def read(path: Path, module: str) -> Names:
    names = Names(path.name == "__init__.py")
    for node in statements(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.ClassDef) and is_public(node.name):
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            names.classes.setdefault(node.name, (members(node), bases))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            is_public(node.name) or module in WITH_PRIVATE_FUNCTIONS
        ):
            names.functions.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for name in assigned(node):
                names.values.setdefault(name, literal(node, names.values))
        elif isinstance(node, ast.ImportFrom):
            source = origin(node, module, names.is_package)
            if f"{source}.".startswith(f"{ROOT}."):
                for alias in node.names:
                    if alias.name == "*":
                        names.stars.append(source)
                    elif is_public(alias.asname or alias.name):
                        names.imports[alias.asname or alias.name] = source, alias.name
    return names


def package_names(folder: Path) -> dict[str, Names]:
    modules = {}
    for path in sorted((folder / ROOT).rglob("*.py")):
        parts = list(path.relative_to(folder).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        if all(map(is_public, parts)):
            module = ".".join(parts)
            modules[module] = read(path, module)
    return modules


def inherited(names: Names, name: str, seen: frozenset[str] = frozenset()) -> set[str]:
    """Members of a class and of its bases in the same module."""
    if name in seen or name not in names.classes:
        return set()
    own, bases = names.classes[name]
    return own.union(*(inherited(names, base, seen | {name}) for base in bases))


def short(module: str) -> str:
    return module.removeprefix(ROOT).removeprefix(".") or ROOT


def lines(module: str, names: Names, modules: dict[str, Names]) -> Iterator[str]:
    yield f"{short(module)}/" if names.is_package else short(module)
    plain = sorted(names.classes.keys() - WITH_MEMBERS)
    if plain:
        yield " ".join([" class", *plain])
    for name in sorted(names.classes.keys() & WITH_MEMBERS):
        yield " ".join([f" class {name}:", *sorted(inherited(names, name))])
    functions = names.functions - names.classes.keys()
    if functions:
        yield " ".join([" def", *sorted(functions)])
    taken = {*names.functions, *names.classes, *names.imports}
    values = {name: value for name, value in names.values.items() if name not in taken}
    others = [name for name, value in values.items() if value is None]
    if others:
        yield " ".join([" value", *sorted(others)])
    for name, value in sorted(values.items()):
        if value is not None:
            yield f" {name} = {value}"
    yield from import_lines(names, modules)


def defined_in(source: str, name: str, modules: dict[str, Names]) -> tuple[str, str] | None:
    """The module that has a name which `source` may have imported itself; None: no module of
    these."""
    for _ in modules:
        if f"{source}.{name}" in modules:
            return f"{source}.{name}", ""
        names = modules.get(source)
        if names is None or name in names.own() or name not in names.imports:
            break
        source, name = names.imports[name]
    found = modules.get(source)
    if found is None or not (name in found.own() or found.stars or is_builder(source, name)):
        return None
    return source, name


def is_builder(module: str, name: str) -> bool:
    """Whether the module makes such a name when it is imported."""
    return module == f"{ROOT}.ops.op_builder" and name.endswith("Builder")


def import_lines(names: Names, modules: dict[str, Names]) -> Iterator[str]:
    sources: dict[str, list[str]] = {source: ["*"] for source in names.stars if source in modules}
    for name, (module, old) in names.imports.items():
        found = defined_in(module, old, modules)
        if found is not None and name not in {*names.classes, *names.functions}:
            text = name if name == found[1] else f"{name}={found[1]}"
            sources.setdefault(found[0], []).append(text)
    for source in sorted(sources):
        yield " ".join([" from", short(source), *sorted(sources[source])])


def main() -> int:
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / ROOT).is_dir():
        sys.exit(f"usage: {sys.argv[0]} FOLDER    (the folder that holds the package {ROOT})")
    modules = package_names(Path(sys.argv[1]))
    print("\n".join(line for name in modules for line in lines(name, modules[name], modules)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
