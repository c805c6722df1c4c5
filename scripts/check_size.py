#!/usr/bin/env python3
"""Checks the size budgets: 400 lines a file, 60 a function, 15 data members a class.

Data members of a Python class are the attributes that its methods assign on `self`, and the
annotated names of its body.

A comment `size: <reason>` in the first five lines of a file, or on the line that begins a function
or class or the line above it, lifts that one limit.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import lizard
from cpp_text import without_literals

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_MEMBERS = 15
CPP_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
SUFFIXES = CPP_SUFFIXES | {".py", ".cmake", ".sh", ""}
SKIPPED = {"build", "dist", "data", "__pycache__"}
EXCEPTION = re.compile(r"(?://|#) size: \S+")
CLASS = re.compile(r"\b(?:class|struct)\s+(?:ZR_API\s+)?(\w+)[^;{}()]*\{")
ACCESS = re.compile(r"\b(?:public|protected|private)\s*:(?!:)")
TEMPLATE_ARGUMENTS = re.compile(r"<[^<>;{}]*>")
# Words that no member's declaration begins with.
NO_MEMBER = re.compile(
    r"(?:using|typedef|friend|static|template|enum|class|struct|union|explicit|virtual|~)\b"
)
# A type and a name without parentheses, up to the initial value.
MEMBER = re.compile(
    r"(?:[\w:]+[\s*&]+)+(?!operator\b)\w+\s*(?:\[\w*\]\s*)*(?:=.*|\{\})?", re.DOTALL
)


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


def excused(lines: list[str], line: int) -> bool:
    """True if a size comment stands on the (1-based) line or the one above."""
    return any(EXCEPTION.search(text) for text in lines[max(0, line - 2) : line])


def own_statements(body: str) -> list[str]:
    """Declarations of a class's body, with `{}` for what is in braces."""
    depth, flat = 0, []
    for character in body:
        depth -= character == "}"
        if depth == 0:
            flat.append(character)
        depth += character == "{"
    text = ACCESS.sub(" ", "".join(flat))
    while text != (text := TEMPLATE_ARGUMENTS.sub("", text)):
        pass
    # A function's body ends its declaration; a member's initial value is followed by a semicolon.
    return [part.strip() for part in re.split(r"(?<=\{\})(?=\s*[^\s;,])|;", text)]


def member_counts(text: str) -> Iterator[tuple[int, str, int]]:
    """(line, name, data members) of each class; members of nested classes count for those."""
    code = without_literals(text)
    for match in CLASS.finditer(code):
        depth = 1
        for end in range(match.end(), len(code)):
            depth += (code[end] == "{") - (code[end] == "}")
            if depth == 0:
                break
        statements = own_statements(code[match.end() : end])
        count = sum(not NO_MEMBER.match(s) and bool(MEMBER.fullmatch(s)) for s in statements)
        yield code.count("\n", 0, match.start()) + 1, match[1], count


def python_member_counts(text: str) -> Iterator[tuple[int, str, int]]:
    """(line, name, data members) of each class."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef):
            continue
        members = {
            item.target.id
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        for method in node.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and method.args.args:
                members |= assigned_on(method.args.args[0].arg, method)
        yield node.lineno, node.name, len(members)


def assigned_on(name: str, method: ast.AST) -> set[str]:
    """Attributes of the variable `name` that a method assigns."""
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
    }


def check_file(path: Path, name: str) -> list[str]:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    problems = []
    if len(lines) > MAX_FILE_LINES and not any(map(EXCEPTION.search, lines[:5])):
        problems.append(f"{name}:1: {len(lines)} lines; a file has at most {MAX_FILE_LINES}")
    if path.suffix in CPP_SUFFIXES | {".py"}:
        for function in lizard.analyze_file(str(path)).function_list:
            length = function.end_line - function.start_line + 1
            if length > MAX_FUNCTION_LINES and not excused(lines, function.start_line):
                problems.append(
                    f"{name}:{function.start_line}: {function.name} has {length} lines; "
                    f"a function has at most {MAX_FUNCTION_LINES}"
                )
    if path.suffix in CPP_SUFFIXES | {".py"}:
        count_members = python_member_counts if path.suffix == ".py" else member_counts
        for line, class_name, count in count_members(text):
            if count > MAX_MEMBERS and not excused(lines, line):
                problems.append(
                    f"{name}:{line}: {class_name} has {count} data members; "
                    f"a class has at most {MAX_MEMBERS}"
                )
    return problems


def check(root: Path) -> list[str]:
    return [
        problem
        for path in source_files(root)
        for problem in check_file(path, path.relative_to(root).as_posix())
    ]


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    problems = check(root)
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
