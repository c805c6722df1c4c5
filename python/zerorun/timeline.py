"""Timeline: what each rank computed and communicated when, for Perfetto (`zerorun.trace`)."""

from __future__ import annotations

import json
import logging
import math
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from zerorun import _C
from zerorun.metrics import CollectiveTable, StepMeter

__all__ = ["Timeline"]

_MICROSECONDS = 1e6
_MOST_EVENTS = 100_000  # of a rank: about 20 MB of the file
_logger = logging.getLogger("zerorun")
# The rows of a rank, from the top, and which collective is in which.
_ROWS = ("program", "reductions", "gathers", "agreements")
_ROW_OF = {"reduce_scatter": 1, "all_gather": 2}
_REDUCTIONS, _GATHERS = 1, 2


class _Engine(Protocol):
    meter: StepMeter

    @property
    def communicator(self) -> _C.Communicator: ...


class Timeline:
    """A listener that writes the steps from `steps[0]` to `steps[1]`, counted from 1, into a file
    on rank 0.

    Ranks are aligned by the clock that processes of one host share. Collective in the last of these
    steps, when the ranks' parts come together.
    """

    def __init__(
        self,
        engine: _Engine,
        file: str,
        steps: Sequence[int],
        table: CollectiveTable,
    ) -> None:
        if len(steps) != 2 or steps[0] > steps[1]:
            raise _C.ConfigError(
                f"/zerorun/trace/steps: got {list(steps)}, expected the first and the last step"
            )
        first, last = steps
        self._communicator = engine.communicator
        self._meter, self._table = engine.meter, table
        self._file, self._first, self._last = Path(file), first, last
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._events: list[dict[str, Any]] = []
        self._dropped = 0
        self._untimed = 0
        self._busy_ms = {_REDUCTIONS: 0.0, _GATHERS: 0.0}
        self._waited_ms = {_REDUCTIONS: 0.0, _GATHERS: 0.0}
        self._clocks = (self._meter.forward, self._meter.backward, self._meter.step)
        if first == 1:
            self._begin()
        self._warning = weakref.finalize(self, _warn, self._file, last)

    def _begin(self) -> None:
        for clock in self._clocks:
            clock.spans = []

    def __call__(self, metrics: dict[str, Any]) -> None:
        rows, step = self._table.take(), metrics["step"]
        if step == self._first - 1:
            self._begin()
        if not self._first <= step <= self._last:
            return
        for clock in self._clocks:
            spans, clock.spans = clock.spans or [], []
            for name, begin, end in spans:
                self._add(name, 0, begin, end, {"step": step})
        for op, label, nbytes, begin, end in rows:
            row = self._row(op, label)
            if math.isnan(begin):
                self._untimed += 1
                continue
            if row in self._busy_ms:
                self._busy_ms[row] += 1e3 * (end - begin)
            self._add(op, row, begin, end, {"of": label, "bytes": nbytes})
        self._waited_ms[_REDUCTIONS] += metrics["reduce_ms"]
        self._waited_ms[_GATHERS] += metrics["gather_ms"]
        if step == self._last:
            self._finish()

    @staticmethod
    def _row(op: str, label: str) -> int:
        """Stage 0 reduces its buckets by all_reduce; a step agrees by one, too."""
        if op == "all_reduce" and "bucket" in label:
            return _REDUCTIONS
        return _ROW_OF.get(op, len(_ROWS) - 1)

    def _add(self, name: str, row: int, begin: float, end: float, what: dict[str, Any]) -> None:
        if len(self._events) >= _MOST_EVENTS:
            self._dropped += 1
            return
        self._events.append(
            {
                "ph": "X",
                "name": name,
                "cat": _ROWS[row],
                "pid": self._communicator.rank,
                "tid": row,
                "ts": begin * _MICROSECONDS,
                "dur": max(0.0, (end - begin) * _MICROSECONDS),
                "args": what,
            }
        )

    def hidden(self) -> dict[str, float | None]:
        """The part of this rank's reductions and gathers that it did not wait for, 0 to 1; None
        where there were none."""
        return {
            name: max(0.0, 1.0 - self._waited_ms[row] / self._busy_ms[row])
            if self._busy_ms[row] > 0.0
            else None
            for name, row in (("reductions", _REDUCTIONS), ("gathers", _GATHERS))
        }

    def _finish(self) -> None:
        for clock in self._clocks:
            clock.spans = None
        self._warning.detach()
        part = {
            "events": self._events,
            "hidden": self.hidden(),
            "dropped": self._dropped + self._table.dropped,
            "untimed": self._untimed,
        }
        parts = _gather(self._communicator, json.dumps(part).encode())
        self._events = []
        if self._communicator.rank == 0:
            _write(self._file, [json.loads(part) for part in parts], self._first, self._last)


def _warn(file: Path, last: int) -> None:
    _logger.warning(
        "the timeline %s was not written: training ended before step %d, the last of "
        "/zerorun/trace/steps",
        file,
        last,
    )


def _gather(communicator: _C.Communicator, own: bytes) -> list[bytes]:
    """The bytes of all ranks. Collective."""
    ranks = communicator.world_size
    length = torch.tensor([len(own)])
    lengths = torch.zeros(ranks, dtype=torch.int64)
    communicator.all_gather(length, lengths, "timeline: sizes")
    most = int(lengths.max().item())
    padded = torch.zeros(most, dtype=torch.uint8)
    padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    together = torch.zeros(most * ranks, dtype=torch.uint8)
    communicator.all_gather(padded, together, "timeline")
    rows = together.view(ranks, most)
    return [bytes(rows[i, : int(lengths[i])].numpy()) for i in range(ranks)]


def _write(file: Path, parts: list[dict[str, Any]], first: int, last: int) -> None:
    events: list[dict[str, Any]] = []
    for rank, part in enumerate(parts):
        names = {"process_name": [(0, f"rank {rank}")], "thread_name": list(enumerate(_ROWS))}
        for kind, rows in names.items():
            events += [
                {"ph": "M", "name": kind, "pid": rank, "tid": row, "args": {"name": name}}
                for row, name in rows
            ]
        events += part["events"]
    begin = min((event["ts"] for event in events if event["ph"] == "X"), default=0.0)
    for event in events:
        if event["ph"] == "X":
            event["ts"] = round(event["ts"] - begin, 3)
            event["dur"] = round(event["dur"], 3)
    about = {
        "steps": [first, last],
        "hidden": [part["hidden"] for part in parts],
        "dropped_events": sum(part["dropped"] for part in parts),
    }
    text = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
    file.write_text(json.dumps(text, separators=(",", ":")), encoding="utf-8")
    untimed = sum(part["untimed"] for part in parts)
    _logger.info("the timeline of steps %d to %d is in %s", first, last, file)
    if untimed or about["dropped_events"]:
        _logger.warning(
            "%s: %d collectives on GPU streams, which the host does not time, and %d events "
            "beyond the file's limit are not in it",
            file,
            untimed,
            about["dropped_events"],
        )
