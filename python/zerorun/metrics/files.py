"""Metrics files: a rank's figures as lines of JSON, and these as readers meet them."""

import errno
import json
import math
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from zerorun import _C

VERSION = 1  # of a metrics file; a reader refuses later ones


def rank_path(path: str | os.PathLike[str], rank: int) -> Path:
    """The file of a rank: rank 0's is `path`, others' lie beside it."""
    given = Path(path)
    return given if rank == 0 else given.with_name(f"{given.stem}.rank{rank}{given.suffix}")


def plain(value: Any) -> Any:
    """The value with null for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


class MetricsFile:
    """A listener that appends a line for each step, so that a reader can follow the file.

    A file that is there is continued: a run that resumed goes on in it. Raises OSError where it
    cannot be written. `run`: what the first line says of the run.
    """

    def __init__(
        self, path: str | os.PathLike[str], rank: int, world_size: int, run: dict[str, Any]
    ) -> None:
        self._rank = rank
        file = rank_path(path, rank)
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file.open("ab", buffering=0)  # a line that fails is not written later
        weakref.finalize(self, self._file.close)
        if file.stat().st_size > 0:  # so it is no pipe
            with file.open("rb") as before:
                before.seek(-1, os.SEEK_END)
                if before.read(1) != b"\n":
                    self._file.write(b"\n")  # the run before ended within a line
        head = {"zerorun_metrics": VERSION, "rank": rank, "world_size": world_size, "run": run}
        self._write(head)

    def __call__(self, metrics: dict[str, Any]) -> None:
        self._write({"rank": self._rank} | metrics)

    def _write(self, line: dict[str, Any]) -> None:
        data = f"{_text(line)}\n".encode()
        try:
            if self._file.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            error.filename = self._file.name
            raise


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=str).encode


def _text(line: dict[str, Any]) -> str:
    try:
        return _encode(line)
    except ValueError:  # a number that JSON does not have, which is rare
        return _encode(plain(line))


# --- reading ---

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


def first_line(path: Path) -> dict[str, Any]:
    """What a metrics file says of its run; {} if that is no JSON object. Raises OSError."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return parse_line(file.readline(MOST_CHARACTERS)) or {}


class Tail:
    """A file of lines, read on from where the last look ended."""

    def __init__(self, path: Path, rank: int = 0) -> None:
        self.rank = rank  # that the next lines belong to
        self.at = 0  # bytes read
        self.nbytes = 0
        self._path = path
        self._identity = self._look()[0]
        self._rest = b""  # of a line that is being written

    def _look(self) -> tuple[tuple[int, int], int]:
        facts = self._path.stat()
        return (facts.st_dev, facts.st_ino), facts.st_size

    def goes_on(self) -> bool:
        """False where another file has taken its place, or it was cut."""
        identity, size = self._look()
        return identity == self._identity and size >= self.at

    def lines(self, follow: bool = True) -> Iterator[str]:
        """The new lines. A last line without its end waits for the next look if there is one."""
        with self._path.open("rb") as file:
            self.nbytes = self._look()[1]
            file.seek(self.at)
            while part := file.readline(MOST_CHARACTERS):
                self.at += len(part)
                self._rest += part
                if part.endswith(b"\n") or len(self._rest) >= MOST_CHARACTERS or not follow:
                    yield self._rest.decode(errors="replace")
                    self._rest = b""


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
