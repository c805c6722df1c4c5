"""ProgressBar: a line on a terminal about work that takes its time."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

_AFTER_S = 2.0  # what is done sooner needs no bar
_EVERY_S = 0.2
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

    def __enter__(self) -> ProgressBar:
        if self._file.isatty():
            self._thread = threading.Thread(target=self._draw, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            if self._ended.wait(_EVERY_S):
                break
        self._file.write(_CLEAR)
        self._file.flush()

    def _text(self, seconds: float) -> str:
        if not self._total:
            return f"{self._what}: {seconds:.0f} s"
        part = min(1.0, self._done / self._total)
        return f"{self._what} [{'#' * int(part * _WIDTH):<{_WIDTH}}] {100 * part:3.0f} %"
