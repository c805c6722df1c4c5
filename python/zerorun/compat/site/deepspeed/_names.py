"""The public names of DeepSpeed as data: _names.txt, which scripts/deepspeed_names.py writes."""

import ast
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

_PATH = os.path.join(os.path.dirname(__file__), "_names.txt")


@dataclass
class Names:
    """The public names of one module; modules are named without the package's, which is ""."""

    is_package: bool = False
    classes: dict[str, list[str]] = field(default_factory=dict)  # name: members, where listed
    others: set[str] = field(default_factory=set)  # functions, and values that are no literals
    literals: dict[str, object] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)  # name: (module, name there)
    stars: list[str] = field(default_factory=list)  # modules all of whose names are here too

    def own(self) -> set[str]:
        return {*self.classes, *self.others, *self.literals}


@functools.cache
def _lines_of_modules() -> dict[str, list[str]]:
    with open(_PATH, encoding="utf-8") as file:
        parts = file.read().split("\n")
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in parts:
        if line and not line.startswith(" "):
            module = line.removesuffix("/")
            lines = found.setdefault("" if module == "deepspeed" else module, [])
        if line:
            lines.append(line)
    # Of earlier versions: Megatron-DeepSpeed imports it whether it compresses or not.
    found["compression.compress"] = ["", "def init_compression redundancy_clean"]
    return found


def modules() -> Iterator[str]:
    yield from _lines_of_modules()


@functools.cache
def names_of(module: str) -> Names | None:
    """The names of a module, None if DeepSpeed has no such module."""
    lines = _lines_of_modules().get(module)
    if lines is None:
        return None
    names = Names(is_package=lines[0].endswith("/"))
    for line in lines[1:]:
        kind, *words = line.split()
        if words[0] == "=":
            names.literals[kind] = ast.literal_eval(line.partition(" = ")[2])
        elif kind == "class" and words[0].endswith(":"):
            names.classes[words[0][:-1]] = words[1:]
        elif kind == "class":
            names.classes |= {word: [] for word in words}
        elif kind in ("def", "value"):
            names.others.update(words)
        else:
            _add_imports(names, *words)
    return names


def _add_imports(names: Names, source: str, *words: str) -> None:
    for word in words:
        name, renamed, old = word.partition("=")
        if word == "*":
            names.stars.append(source)
        else:
            names.imports[name] = source, old if renamed else name


def all_names(module: str) -> set[str]:
    """With those that the module passes on."""
    names = names_of(module) or Names()
    return names.own().union(names.imports, *map(all_names, names.stars))
