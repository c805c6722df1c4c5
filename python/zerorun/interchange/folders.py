"""Names that files have for other files, which must be in the same folder."""

from __future__ import annotations

import os

from zerorun import _C

_MAX_NBYTES = 4096


def is_there(path: str) -> bool:
    """True also for a link that leads nowhere, and for what this user must not see: what opens it
    says which."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def one_name(name: str, where: str) -> str:
    """The name, if it is one of an entry of a folder. Raises CheckpointError."""
    if name in {"", ".", ".."} or os.path.basename(name) != name or "\0" in name:
        raise _C.CheckpointError(
            f"{where}: got {name!r}, expected the name of something in the same folder"
        )
    return name


def inside(folder: str, name: str, where: str) -> str:
    """The path of a file that `where` names, relative to its folder. Raises CheckpointError for one
    that is elsewhere or that is not there."""
    parts = name.split("/")
    for part in parts:
        one_name(part, where)
    path = os.path.join(folder, *parts)
    if not os.path.isfile(path):
        raise _C.CheckpointError(f"{path} is missing, which {where} names")
    return path


def read_tag(path: str) -> str:
    """The tag in a file `latest`. Raises CheckpointError."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_NBYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise _C.CheckpointError(f"{path}: {error}") from error
    return one_name(text.strip(), path)
