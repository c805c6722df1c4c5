"""Files that are written as a whole."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["replacing", "write_text"]


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when it is complete; until then that stays as it was.

    Links are followed, and permissions stay. What is no regular file (a pipe, /dev/null) is written
    to, never replaced. An OSError names the file.
    """
    try:
        with _replacing(path) as file:
            yield file
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, path) from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """The same of a text, in UTF-8."""
    with replacing(os.fspath(path)) as file:
        file.write(text.encode())


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[BinaryIO]:
    target = os.path.realpath(path)
    exists = os.path.exists(target)
    if exists and not os.path.isfile(target):
        with open(target, "wb") as file:
            yield file
        return
    temporary = f"{target}.tmp"
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if exists:
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
