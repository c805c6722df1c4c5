#!/usr/bin/env python3
"""Checks the rules that keep the layers apart; see ARCHITECTURE.md, "Layers".

Rules go by folder, and inside the Python package by module (python_imports.py). There is no list of
exceptions: code that needs one is in the wrong folder.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from cpp_text import cpp_files, without_comments, without_literals
from python_imports import check_imports

# A folder may include itself and those on lines above its own.
LAYERS = [
    ["include/zerorun"],
    ["core"],
    ["os"],
    ["config"],
    ["amp"],
    ["device"],
    ["comm"],
    ["offload", "optim"],
    ["zero"],
    ["checkpoint"],
    ["train", "launcher"],
    ["tools", "python", "examples"],
]
# The same for the rooms of a folder, "" being its own files and rooms that are not listed.
ROOMS = {
    "config": [["json"], ["keys"], ["checks"], [""], ["docs"]],
    "device": [[""], ["cuda/runtime"], ["cuda/kernels"], ["cuda/libraries"], ["cuda"]],
    "zero": [
        ["partition", "timeline"],
        ["groups"],
        ["storage"],
        ["gradients", "parameters", "update"],
        [""],
    ],
    "checkpoint": [
        ["files"],
        ["format"],
        ["folder"],
        ["loading"],
        ["saving", "models"],
        [""],
    ],
    "train": [["model", "report"], ["cpu", "cuda", "data"], ["run"], [""]],
    "tools": [["terminal"], ["plan", "ckpt"], [""]],
}
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ROOM_LEVEL = {
    (folder, room): level
    for folder, levels in ROOMS.items()
    for level, rooms in enumerate(levels)
    for room in rooms
}
# No other library has headers without folder and suffix.
STANDARD_HEADER = re.compile(r"[a-z_]+")
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*([<\"])([^>\"]+)[>\"]", re.MULTILINE)

# What opens a scope: a namespace, a type (but no specialization), or anything else; or closes it.
SCOPE = re.compile(
    r"\bnamespace\s+(?P<namespace>\w+(?:::\w+)*)\s*\{"
    r"|\b(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+(?:(?:ZR_API|alignas\(\w+\))\s+)*"
    r"(?P<type>\w+(?:::\w+)*)(?:\s+final)?\s*(?::(?!:)[^;{}]*)?\{"
    r"|[{}]"
)


@dataclass(frozen=True)
class Rule:
    """`pattern` may occur only in files whose path matches `home`."""

    pattern: re.Pattern[str]
    home: re.Pattern[str]
    message: str


def _rule(pattern: str, home: str, message: str) -> Rule:
    return Rule(re.compile(pattern), re.compile(home), message)


NAMES = [
    _rule(
        r"\b(?:cuda|cublas(?:Lt)?|cudnn|nvml|nvtx|nccl|cu(?=[A-Z][a-z]))[A-Z]\w*"
        r"|\bCU(?:device|stream|res)\w+",
        r"(?:device|train)/cuda/|comm/nccl/",
        "CUDA and NCCL belong in device/cuda and comm/nccl",
    ),
    _rule(
        r"\b(?:__global__|__device__|__host__|__CUDACC__|__CUDA_ARCH__)\b",
        r"device/|train/cuda/|comm/nccl/",
        "kernel annotations belong in device/",
    ),
    _rule(
        r"\b(?:pybind11|torch|at|c10)::|\bPy(?:Object|Err|Gil|_\w+)\w*",
        r"python/",
        "Python and torch belong in python/",
    ),
    _rule(
        r"\b(?:(?:secure_)?getenv|environ)\b",
        r"config/env\.cc$",
        "read the environment through config/env.h",
    ),
    # Communicator::abort(reason) is a method: the C function takes no argument.
    _rule(
        r"(?<![\w.>~:])(?:std::|::)?(?:abort\s*\(\s*\)|(?:exit|quick_exit|_Exit)\s*\()"
        r"|\bstd::terminate\b",
        r"(?:tools|train|examples/\w+)/main\.cc$",
        "library code throws; it does not end the process",
    ),
    _rule(r"\b_exit\s*\(", r"launcher/", "only a forked child of the launcher leaves with _exit"),
]
HEADERS = [
    _rule(
        r"^(?:cuda|cublas|cudnn|nvml|nvtx|nvToolsExt|nccl)",
        r"(?:device|train)/cuda/|comm/nccl/",
        "CUDA and NCCL belong in device/cuda and comm/nccl",
    ),
    _rule(r"^gloo/", r"comm/gloo/", "Gloo belongs in comm/gloo"),
    _rule(r"^(?:Python\.h|pybind11/|torch/|ATen/|c10/)", r"python/", "belongs in python/"),
]


def _folders(path: str) -> list[str]:
    """The first two folders of a path as one, and the first."""
    folders = path.split("/")[:-1]
    return ["/".join(folders[:depth]) for depth in (2, 1) if depth <= len(folders)]


def layer_of(path: str) -> str | None:
    """The layer that holds a file or, for an include, is named by its path."""
    if path.startswith("zerorun/"):
        return "include/zerorun"
    return next((folder for folder in _folders(path) if folder in LEVEL), None)


def room_of(path: str, layer: str) -> str:
    """The room of the layer that holds the file."""
    rooms = _folders(path.removeprefix(f"{layer}/"))
    return next((room for room in rooms if (layer, room) in ROOM_LEVEL), "")


def points_upwards(
    source: str, target: str, layer: str, target_layer: str
) -> tuple[str, str] | None:
    """Both places, when the first is not above the second."""
    if layer != target_layer:
        return (layer, target_layer) if LEVEL[target_layer] >= LEVEL[layer] else None
    room, target_room = room_of(source, layer), room_of(target, layer)
    if room == target_room or layer not in ROOMS:
        return None
    if ROOM_LEVEL[layer, target_room] < ROOM_LEVEL[layer, room]:
        return None
    return f"{layer}/{room}", f"{layer}/{target_room}"


def include_problem(source: str, target: str, quoted: bool) -> str | None:
    layer = layer_of(source)
    allowed = target.startswith("zerorun/") if quoted else STANDARD_HEADER.fullmatch(target)
    if layer == "include/zerorun" and not allowed:
        return "public headers include only the standard library and each other"
    if not quoted:
        for rule in HEADERS:
            if rule.pattern.search(target) and not rule.home.match(source):
                return rule.message
        return None
    target_layer = layer_of(target)
    if target_layer is None:
        return "quoted includes are paths from the repository root into one of its layers"
    if layer and (places := points_upwards(source, target, layer, target_layer)):
        lower, upper = (place.rstrip("/") for place in places)
        return f"{lower} may not include {upper}: includes point downwards"
    return None


def check_file(root: Path, path: Path) -> list[str]:
    source = path.relative_to(root).as_posix()
    text = path.read_text(encoding="utf-8")
    problems = []

    def report(position: int, what: str, message: str) -> None:
        line = text.count("\n", 0, position) + 1
        problems.append(f"{source}:{line}: {what}: {message}")

    for match in INCLUDE.finditer(without_comments(text)):
        message = include_problem(source, match[2], quoted=match[1] == '"')
        if message:
            report(match.start(1), f"#include {match[2]}", message)
    code = INCLUDE.sub(lambda m: " " * len(m[0]), without_comments(text))
    for rule in NAMES:
        if rule.home.match(source):
            continue
        for match in rule.pattern.finditer(without_literals(code)):
            report(match.start(), match[0].strip(), rule.message)
    return problems


def defined_types(text: str) -> set[str]:
    """Qualified names of classes and enumerations that other files can name."""
    scopes: list[str | None] = []
    found = set()
    for match in SCOPE.finditer(without_literals(text)):
        if match[0] == "}":
            del scopes[-1:]
            continue
        scopes.append(match["namespace"] or match["type"])
        if match["type"] and None not in scopes:
            found.add("::".join(filter(None, scopes)))
    return found


def check_type_names(root: Path, paths: list[Path]) -> list[str]:
    """One name, one type: a program that links both would mix up their functions."""
    files: dict[str, list[str]] = {}
    for path in paths:
        for name in sorted(defined_types(path.read_text(encoding="utf-8"))):
            files.setdefault(name, []).append(path.relative_to(root).as_posix())
    return [
        f"{other}:1: {name} is also a type of {first}: each type needs a name of its own"
        for name, (first, *others) in sorted(files.items())
        for other in others
    ]


def check(root: Path) -> list[str]:
    paths = list(cpp_files(root, [name for names in LAYERS for name in names]))
    problems = [problem for path in paths for problem in check_file(root, path)]
    return problems + check_type_names(root, paths) + check_imports(root)


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    problems = check(root)
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
