#!/usr/bin/env python3
"""Checks the size budgets: 400 lines a file, 60 a function, 15 data members a class, and no file in
git above 1 MiB.

Data members of a Python class are the attributes that its methods assign on `self`, and the
annotated names of its body. A class that exceeds the limit only with the data members of its base
classes is a warning.

A comment `size: <reason>` in the first five lines of a file, or on the line that begins a function
or class or the line above it, lifts that one limit.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lizard
from class_members import CPP_SUFFIXES, MAX_MEMBERS, Class, classes_of, with_inherited

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_NBYTES = 1 << 20
SUFFIXES = CPP_SUFFIXES | {".py", ".cmake", ".sh", ""}
SKIPPED = {"build", "dist", "data", "__pycache__"}
EXCEPTION = re.compile(r"(?://|#) size: \S+")


def source_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        if path.name.startswith(".") or path.name in SKIPPED:
            continue
        if path.is_dir():
            yield from source_files(path)
        elif path.suffix in SUFFIXES and (path.suffix or is_script(path)):
            yield path


def is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def large_files(root: Path) -> Iterator[str]:
    """Models and other results, added by accident, which every clone would have for good."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False
    )
    for name in filter(None, listed.stdout.split("\0")):
        path = root / name
        if path.is_file() and path.stat().st_size > MAX_NBYTES:
            yield f"{name}: {path.stat().st_size} bytes; a file in git has at most {MAX_NBYTES}"


def excused(lines: list[str], line: int) -> bool:
    """True if a size comment stands on the (1-based) line or the one above."""
    return any(EXCEPTION.search(text) for text in lines[max(0, line - 2) : line])


def check_file(path: Path, name: str, classes: list[Class]) -> list[str]:
    """Problems of a file, whose classes are added to `classes`."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    problems = []
    if len(lines) > MAX_FILE_LINES and not any(map(EXCEPTION.search, lines[:5])):
        problems.append(f"{name}:1: {len(lines)} lines; a file has at most {MAX_FILE_LINES}")
    if path.suffix not in CPP_SUFFIXES | {".py"}:
        return problems
    for function in lizard.analyze_file(str(path)).function_list:
        length = function.end_line - function.start_line + 1
        if length > MAX_FUNCTION_LINES and not excused(lines, function.start_line):
            problems.append(
                f"{name}:{function.start_line}: {function.name} has {length} lines; "
                f"a function has at most {MAX_FUNCTION_LINES}"
            )
    found = classes_of(text, name)
    for one in found:
        if one.members > MAX_MEMBERS and not excused(lines, one.line):
            problems.append(
                f"{name}:{one.line}: {one.name} has {one.members} data members; "
                f"a class has at most {MAX_MEMBERS}"
            )
    classes += found
    return problems


def warnings_of(classes: list[Class]) -> list[str]:
    """Classes that are within the limit alone, but not with the data that they inherit."""
    return [
        f"warning: {one.path}:{one.line}: {one.name} has {total} data members with those of its "
        f"base classes; a class has at most {MAX_MEMBERS}"
        for total, one in with_inherited(classes)
        if one.members <= MAX_MEMBERS < total
    ]


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    classes: list[Class] = []
    problems = [
        problem
        for path in source_files(root)
        for problem in check_file(path, path.relative_to(root).as_posix(), classes)
    ]
    problems += large_files(root)
    for line in problems + warnings_of(classes):
        print(line)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
