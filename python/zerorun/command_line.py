"""The shared parts of commands written in Python: how they read options and tell errors."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from zerorun import _C

_FAILURE, _BAD_INPUT = 1, 2  # as of the commands in C++


class Parser(argparse.ArgumentParser):
    """argparse's parser, which names the option that is nearest to an unknown one."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._words: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Exit code 2. An unknown option comes before what is missing: it may be the reason."""
        parser, words = self._of_command()
        options = list(parser._option_string_actions)
        for word in words[: words.index("--")] if "--" in words else words:
            name = word.partition("=")[0]
            if not name.startswith("--") or any(known.startswith(name) for known in options):
                continue
            nearest = _C.nearest_name(name, options)
            hint = f"did you mean {nearest}?" if nearest else f"see {parser.prog} --help"
            message = f"unknown option {name}; {hint}"
            break
        self.exit(_BAD_INPUT, f"{parser.prog}: error: {_C.printable(message)}\n")

    def _of_command(self) -> tuple[argparse.ArgumentParser, list[str]]:
        """The parser of the command that the words begin with, and what follows it."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and self._words:
                chosen = action.choices.get(self._words[0])
                if chosen is not None:
                    return chosen, self._words[1:]
        return self, self._words


def tell_error(command: str, error: Exception) -> int:
    """One line on standard error, and the exit code."""
    text, code = str(error), _FAILURE
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{error.filename}: "
        text = f"{where}{error.strerror}"
    if isinstance(error, (_C.ConfigError, FileNotFoundError)):
        code = _BAD_INPUT
    print(f"{command}: error: {_C.printable(text)}", file=sys.stderr)
    return code
