"""Classes of C++ and Python sources with their data members, which lint and figures count."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cpp_text import without_literals

CPP_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
MAX_MEMBERS = 15
_CLASS = re.compile(
    r"(?<!enum )\b(?:class|struct)\s+(?:ZR_API\s+)?(?P<name>\w+)(?P<head>[^;{}()]*)\{"
)
_BASE = re.compile(r"(?:\w+::)*(\w+)")
_ACCESS = re.compile(r"\b(?:public|protected|private|virtual)\b")
_TEMPLATE_ARGUMENTS = re.compile(r"<[^<>;{}]*>")
_ARGUMENTS = re.compile(r"\([^()]+\)")
# Words that no member's declaration begins with.
_NO_MEMBER = re.compile(
    r"(?:using|typedef|friend|static|template|enum|class|struct|union|explicit|virtual|~)\b"
)
# A type and names without parentheses, each up to its initial value.
_NAME = r"(?!operator\b)\w+\s*(?:\[\w*\]\s*)*(?:=[^,]*|\{\}\s*)?"
_MEMBERS = re.compile(rf"(?:[\w:]+[\s*&]+)+{_NAME}(?:,[\s*&]*{_NAME})*", re.DOTALL)


@dataclass(frozen=True)
class Class:
    """A definition in one file. Every name is a data member: `int a, b;` are two."""

    name: str
    line: int
    members: int
    bases: tuple[str, ...]
    path: str = ""


def cpp_classes(text: str, path: str = "") -> Iterator[Class]:
    """Members of nested classes count for those."""
    code = without_literals(text)
    for match in _CLASS.finditer(code):
        depth = 1
        for end in range(match.end(), len(code)):
            depth += (code[end] == "{") - (code[end] == "}")
            if depth == 0:
                break
        members = sum(map(_names_of, _own_statements(code[match.end() : end])))
        line = code.count("\n", 0, match.start()) + 1
        yield Class(match["name"], line, members, _cpp_bases(match["head"]), path)


def _without(pattern: re.Pattern[str], text: str, instead: str = "") -> str:
    """Without what matches, also when that is nested."""
    while text != (text := pattern.sub(instead, text)):
        pass
    return text


def _cpp_bases(head: str) -> tuple[str, ...]:
    _, _, bases = _without(_TEMPLATE_ARGUMENTS, head).partition(":")
    return tuple(_BASE.findall(_ACCESS.sub("", bases)))


def _own_statements(body: str) -> list[str]:
    """Declarations of a class's body, with `{}` for what is in braces."""
    depth, flat = 0, []
    for character in body:
        depth -= character == "}"
        if depth == 0:
            flat.append(character)
        depth += character == "{"
    text = re.sub(r"\b(?:public|protected|private)\s*:(?!:)", " ", "".join(flat))
    text = _without(_TEMPLATE_ARGUMENTS, text)
    # A function's body ends its declaration; a member's initial value is followed by a semicolon.
    return [part.strip() for part in re.split(r"(?<=\{\})(?=\s*[^\s;,])|;", text)]


def _names_of(statement: str) -> int:
    """How many data members a declaration declares."""
    text = _without(_ARGUMENTS, statement, "()")
    if _NO_MEMBER.match(text) or not _MEMBERS.fullmatch(text):
        return 0
    return 1 + text.count(",")


def python_classes(text: str, path: str = "") -> Iterator[Class]:
    """Members are attributes that methods assign on `self`, and annotated names of the body."""
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
                members |= _assigned_on(method.args.args[0].arg, method)
        bases = tuple(ast.unparse(base).rpartition(".")[2] for base in node.bases)
        yield Class(node.name, node.lineno, len(members), bases, path)


def _assigned_on(name: str, method: ast.AST) -> set[str]:
    """Attributes of the variable `name` that a method assigns."""
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
    }


def classes_of(text: str, path: str) -> list[Class]:
    """Of a C++ or Python file."""
    return list((python_classes if path.endswith(".py") else cpp_classes)(text, path))


def with_inherited(classes: Iterable[Class]) -> list[tuple[int, Class]]:
    """(data members with those of all base classes, class).

    Bases are found by name in files of the same language; of several with that name, it is the one
    in the same file, or else the one with the most members.
    """
    named: dict[tuple[str, bool], list[Class]] = defaultdict(list)
    for one in classes:
        named[one.name, one.path.endswith(".py")].append(one)

    def total(one: Class, below: tuple[Class, ...] = ()) -> int:
        sum_of = one.members
        for name in one.bases:
            found = [c for c in named[name, one.path.endswith(".py")] if c not in (*below, one)]
            if found:
                base = max(found, key=lambda c: (c.path == one.path, c.members))
                sum_of += total(base, (*below, one))
        return sum_of

    return [(total(one), one) for several in list(named.values()) for one in several]
