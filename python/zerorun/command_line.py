"""The shared parts of commands written in Python: options, errors, and a line about long work."""

import argparse
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TextIO

from zerorun import _C

_FAILURE, _BAD_INPUT = 1, 2  # as of the commands in C++
_UNWRITABLE = {errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG}


class Parser(argparse.ArgumentParser):
    """argparse's parser, which names the option that is nearest to an unknown one."""

    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = list(sys.argv[1:] if args is None else args)
        known, rest = super().parse_known_args(self._words, namespace)
        if rest:  # here, where a command's own parser has the options
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return known, rest

    def error(self, message: str) -> NoReturn:
        """Exit code 2. An unknown option comes before what is missing: it may be the reason."""
        words, options = self._words, list(self._option_string_actions)
        for word in words[: words.index("--")] if "--" in words else words:
            name = word.partition("=")[0]
            if not name.startswith("--") or any(known.startswith(name) for known in options):
                continue
            nearest = _C.nearest_name(name, options)
            hint = f"did you mean {nearest}?" if nearest else f"see {self.prog} --help"
            message = f"unknown option {name}; {hint}"
            break
        self.exit(_BAD_INPUT, f"{self.prog}: error: {_C.printable(message)}\n")


def exit_with(main: Callable[..., int], *arguments: list[str]) -> NoReturn:
    """Exits with the code of a command, by SIGPIPE if nobody reads its output to the end, and with
    one line on standard error if that cannot be written."""
    try:
        try:
            code = main(*arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # at the interpreter's end a failure would print a traceback
    except BrokenPipeError:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.raise_signal(signal.SIGPIPE)
    except OSError as error:
        # An error of a file that the command itself writes has its name.
        if sys.stdout is None or error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in a buffer
        text = f"cannot write to standard output: {error.strerror}"
        code = tell_error("zerorun", _C.IoError(text))
    sys.exit(code)


def tell_error(command: str, error: Exception) -> int:
    """One line on standard error, and the exit code."""
    if isinstance(error, BrokenPipeError):
        raise error  # for exit_with
    text, code = str(error), _FAILURE
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{error.filename}: "
        text = f"{where}{error.strerror}"
    if isinstance(error, (_C.ConfigError, FileNotFoundError)):
        code = _BAD_INPUT
    print(f"{command}: error: {_C.printable(text)}", file=sys.stderr)
    return code


_AFTER_S = 2.0  # what is done sooner needs no bar
_WIDTH = 30
_CLEAR = "\r\033[K"


class ProgressBar:
    """Within `with`, from two seconds on: how much is done, as far as :meth:`show` was told, and
    for how long. On anything but a terminal it writes nothing."""

    def __init__(self, what: str, file: TextIO = sys.stderr, after_s: float = _AFTER_S) -> None:
        self._what = what
        self._file = file
        self._after_s = after_s
        self._done = 0
        self._total = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, done: int, total: int) -> None:
        """Bytes, or whatever else is counted."""
        self._done, self._total = done, total

    def __enter__(self) -> "ProgressBar":
        if self._file.isatty():
            self._thread = threading.Thread(target=self._draw, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self) -> None:
        began = time.monotonic()
        if self._ended.wait(self._after_s):
            return
        while True:
            self._file.write(f"\r{self._text(time.monotonic() - began)}\033[K")
            self._file.flush()
            if self._ended.wait(0.2):
                break
        self._file.write(_CLEAR)
        self._file.flush()

    def _text(self, seconds: float) -> str:
        if not self._total:
            return f"{self._what}: {seconds:.0f} s"
        part = min(1.0, self._done / self._total)
        return f"{self._what} [{'#' * int(part * _WIDTH):<{_WIDTH}}] {100 * part:3.0f} %"
