"""The rules of imports in python/zerorun, which check_boundaries.py applies.

A module imports modules of lower layers only, `if TYPE_CHECKING` and imports in functions included,
so there are no circles. The environment is read in one module.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "python/zerorun"
# From the bottom up. A package means all of its modules, which may import each other, but not
# in a circle. The rows from `zero` on are what users import: no module of the rows before does.
LAYERS = [
    ["_C", "lazy_names", "process_state", "whole_file"],
    [
        "command_line",
        "environment",
        "config",
        "experts",
        "host_memory",
        "program_warning",
        "torch_seam",
    ],
    ["agreement", "communicator", "dataloader", "flops", "program_state"],
    ["metrics"],
    ["monitor", "profiling"],
    ["sequence"],
    ["model"],
    ["device", "hooks"],
    ["shards"],
    ["optimizers"],
    ["interchange"],
    ["checkpoints"],
    ["sharded_module", "sharded_optimizer"],
    ["engine"],
    ["observers"],
    ["initialization"],
    ["sharding"],
    ["zero", "consolidate", "compat", "nn", "report"],
    ["explain", "top", "tune"],
    ["conversion"],
    ["__init__", "__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# They gather names of many modules for users.
FACADES = {"zero", "compat", "__init__"}
ENVIRONMENT = "environment"
RELATIVE = "a relative import"


def module_of(path: Path) -> str:
    """The dotted name below the package; a package's own is that of its folder."""
    parts = list(path.with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


def imports_in(tree: ast.AST, modules: set[str]) -> Iterator[tuple[int, str]]:
    """(line, module of the package) of each import, wherever it stands."""

    def resolve(name: str) -> str:
        if name == "zerorun":
            return "__init__"
        inner = name.removeprefix("zerorun.")
        return inner if inner in modules else inner.rpartition(".")[0] or "__init__"

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if f"{alias.name}.".startswith("zerorun."):
                    yield node.lineno, resolve(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.level > 0:
            yield node.lineno, RELATIVE
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("zerorun."):
            for alias in node.names:
                yield node.lineno, resolve(f"{node.module}.{alias.name}")


def environment_reads(tree: ast.AST) -> Iterator[int]:
    """Lines that read a variable; writing one for child processes is `os.environ[...] = ...`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            reads = node.attr in {"getenv", "getenvb"}
        elif isinstance(node, ast.Call):
            reads = ast.unparse(node.func) == "os.environ.get"
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            reads = ast.unparse(node.value) == "os.environ"
        else:
            reads = False
        if reads:
            yield node.lineno


def circles(graph: dict[str, dict[str, int]]) -> Iterator[list[str]]:
    """Each circle once, from the module where the search first meets it."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> Iterator[list[str]]:
        if module in path:
            yield [*path[path.index(module) :], module]
            return
        if module in done:
            return
        for target in graph.get(module, ()):
            yield from visit(target, [*path, module])
        done.add(module)

    for module in graph:
        yield from visit(module, [])


def layer_problem(source: str, target: str) -> str | None:
    if target == RELATIVE:
        return "write the whole name, which begins with zerorun"
    own, other = source.partition(".")[0], target.partition(".")[0]
    for name in (own, other):
        if name not in LEVEL:
            return f"{name} has no layer: give it one in scripts/python_imports.py"
    if own == other:
        return None
    if other in FACADES and own != "__init__":
        return f"{other} is for users; import the module that it takes the name from"
    if LEVEL[other] >= LEVEL[own]:
        return f"{own} may not import {other}: imports point downwards"
    return None


def check_imports(root: Path) -> list[str]:
    package = root / PACKAGE
    files = sorted(package.rglob("*.py"))
    paths = {
        module_of(path.relative_to(package)): path
        for path in files
        if "site" not in path.relative_to(package).parts  # another package: deepspeed
    }
    modules = {*paths, "_C"}
    problems, graph = [], {}
    for module, path in paths.items():
        tree, name = ast.parse(path.read_text(encoding="utf-8")), path.relative_to(root).as_posix()
        graph[module] = {}
        for line, target in imports_in(tree, modules):
            graph[module].setdefault(target, line)
            message = layer_problem(module, target)
            if message:
                problems.append(f"{name}:{line}: import of {target}: {message}")
        if module != ENVIRONMENT:
            problems += [
                f"{name}:{line}: read the environment through zerorun.environment"
                for line in environment_reads(tree)
            ]
    for circle in circles(graph):
        name = paths[circle[0]].relative_to(root).as_posix()
        line = graph[circle[0]][circle[1]]
        problems.append(f"{name}:{line}: import circle: {' -> '.join(circle)}")
    return problems
