"""The shared parts of commands written in Python: how they read options and tell errors."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from zerorun import _C

_FAILURE, _BAD_INPUT = 1, 2  # as of the commands in C++


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
    """Exits with the code of a command, by SIGPIPE if nobody reads its output to the end."""
    try:
        try:
            code = main(*arguments)
        finally:
            sys.stdout.flush()  # at the interpreter's end a failure would print a traceback
    except BrokenPipeError:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.raise_signal(signal.SIGPIPE)
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
