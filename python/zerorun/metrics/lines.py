"""Lines of a metrics file, as its readers meet them: cut, foreign, or damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, TypeGuard

from zerorun import _C
from zerorun.metrics.fields import VERSION

MOST_CHARACTERS = 1 << 20  # of a line; a step has about a thousand
_MOST = 1e300


def is_figure(value: object) -> TypeGuard[float]:
    """True if a value is a number that one can compute with."""
    return isinstance(value, int | float) and -_MOST < value < _MOST


def parse_line(text: str) -> dict[str, Any] | None:
    """None for what is not a JSON object."""
    try:
        line = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def lines_of(file: TextIO) -> Iterator[str]:
    """Lines as they are, but those of absurd length in parts, so that any file fits."""
    while text := file.readline(MOST_CHARACTERS):
        yield text


def check_version(head: dict[str, Any], where: Path) -> None:
    """ConfigError for a file of a later version."""
    version = head["zerorun_metrics"]
    if not isinstance(version, int) or version > VERSION:
        raise _C.ConfigError(
            f"{where}: a metrics file of version {version}, and this zerorun reads version "
            f"{VERSION} and earlier: install a newer one"
        )


def straggler_text(line: dict[str, Any]) -> str | None:
    """The sentence about the rank that the others wait for, where a line has one."""
    found = line.get("straggler")
    text = found.get("text") if isinstance(found, dict) else None
    return " ".join(text.split()) if isinstance(text, str) else None


def rank_in(line: dict[str, Any], otherwise: int) -> int:
    """The rank that a line names."""
    rank = line.get("rank")
    return rank if isinstance(rank, int) and rank >= 0 else otherwise
