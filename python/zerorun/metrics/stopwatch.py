"""Stopwatch: the time that a part of a step took, without waiting for a device."""

import time
from collections.abc import Callable

import torch

Span = tuple[str, float, float]  # what, begin and end in seconds of time.perf_counter()

COMPUTE, DATA, SAVE = 0, 1, 3  # StepPart: what a rank does with its time
Part = tuple[Callable[[int], int], int, int | None]


class Stopwatch:
    """Adds up the times of `with` blocks until :meth:`take_ms`; blocks within it count once.

    On a GPU the time is that of its current stream, between two events. `take_ms` is None when
    those have not happened yet, which it does not wait for. `part`: (`EngineFigures.enter`, the
    part of a step that the blocks are, the one that follows; None: as before).
    """

    def __init__(self, name: str, on_gpu: bool, part: Part | None = None) -> None:
        self.name = name
        self._part, self._next = part, COMPUTE
        self.spans: list[Span] | None = None  # where to write them down, if anybody asked
        self._on_gpu = on_gpu
        self._depth = 0
        self._begin = 0.0
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._pair: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        if self._part is not None:
            enter, inside, after = self._part
            before = enter(inside)
            self._next = before if after is None else after
        self._pair = (_event(), _event()) if self._on_gpu and not captures() else None
        if self._pair is not None:
            self._pair[0].record()
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        end = time.perf_counter()
        self._seconds += end - self._begin
        if self._part is not None:
            self._part[0](self._next)
        if self._pair is not None:
            self._pair[1].record()
            self._events.append(self._pair)
        if self.spans is not None:
            self.spans.append((self.name, self._begin, end))

    def has_happened(self) -> bool:
        """True if the device is past the last block."""
        return all(end.query() for _, end in self._events)

    def take_ms(self) -> float | None:
        """Milliseconds since the last call; None when they are not known, or there was no block."""
        seconds, self._seconds = self._seconds, 0.0
        events, self._events = self._events, []
        if not self._on_gpu:
            return 1e3 * seconds if seconds > 0.0 else None
        if not events or not all(end.query() for _, end in events):
            return None
        return sum(begin.elapsed_time(end) for begin, end in events)


def captures() -> bool:
    """True if what a GPU's stream gets now is for a CUDA graph, which runs at other times."""
    return torch.cuda.is_current_stream_capturing()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
