"""C++ source text with comments or literals blanked out, line numbers unchanged."""

import re
from collections.abc import Iterator
from pathlib import Path

_TOKEN = re.compile(
    r"""
      (?P<comment> //(?:[^\n\\]|\\.|\\\n)* | /\*.*?\*/ )
    | (?P<literal> \bR"(?P<delimiter>[^()\s\\]{0,16})\(.*?\)(?P=delimiter)"
                 | "(?:[^"\\\n]|\\.)*"
                 | (?<![0-9a-zA-Z_])'(?:[^'\\\n]|\\.)+' )
    | (?P<number> \b\d[\w.]*(?:'\w+)* )
    """,
    re.VERBOSE | re.DOTALL,
)


def _blank(text: str) -> str:
    return "".join(c if c == "\n" else " " for c in text)


def without_comments(text: str) -> str:
    return _TOKEN.sub(lambda m: _blank(m[0]) if m["comment"] else m[0], text)


def without_literals(text: str) -> str:
    """Without comments, and with the contents of strings and characters blanked too."""
    return _TOKEN.sub(lambda m: m[0] if m["number"] else _blank(m[0]), text)


def cpp_files(root: Path, directories: list[str]) -> Iterator[Path]:
    for directory in directories:
        for path in sorted((root / directory).rglob("*")):
            if path.suffix in {".h", ".in", ".cc", ".cu", ".cuh"} and path.is_file():
                yield path
