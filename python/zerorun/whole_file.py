"""Files that are written as a whole."""

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when it is complete; until then that stays as it was.

    Links are followed, and permissions stay. What is no regular file (a pipe, /dev/null) is written
    to, never replaced. An OSError names `path`.
    """
    target = os.path.realpath(path)
    # Its own name for each process and thread: other writers and a user's files stay as they are.
    temporary = f"{target}.tmp-{os.getpid()}-{threading.get_ident()}"
    try:
        with _replacing(target, temporary) as file:
            yield file
    except OSError as error:
        if error.errno is None or error.filename not in (None, target, temporary):
            raise
        raise OSError(error.errno, error.strerror, path) from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """The same of a text, in UTF-8."""
    with replacing(os.fspath(path)) as file:
        file.write(text.encode())


@contextlib.contextmanager
def _replacing(target: str, temporary: str) -> Iterator[BinaryIO]:
    exists = os.path.exists(target)
    if exists and not os.path.isfile(target):
        with open(target, "wb") as file:
            yield file
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # of a killed process that had this number
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if exists:
            facts = os.stat(target)
            with contextlib.suppress(PermissionError):  # only root may give a file away
                os.chown(temporary, facts.st_uid, facts.st_gid)
            os.chmod(temporary, stat.S_IMODE(facts.st_mode))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(target))


def sync_folder(folder: str) -> None:
    """Brings the names in a folder to the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system has nothing to sync for a folder
            raise
    finally:
        os.close(descriptor)
