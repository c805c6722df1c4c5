"""The timeline of a few steps: spans of a trace, thinned out so that a page can show them."""

import functools
import heapq
import json
from pathlib import Path
from typing import Any

from zerorun import _C
from zerorun.metrics.files import is_figure

MOST_SPANS = 20_000  # the longest ones are shown
MOST_RANKS = 8
_MOST_BYTES = 512 << 20
_BEGINNING = '{"displayTimeUnit"'
_PARTS = ("reductions", "gathers")
_US_PER_MS = 1e3


def find_trace(folder: Path) -> Path | None:
    """The first timeline among the files of a run's folder."""
    for file in sorted(folder.glob("*.json")):
        try:
            with file.open(encoding="utf-8", errors="replace") as text:
                if text.read(len(_BEGINNING)) == _BEGINNING:
                    return file
        except OSError:
            continue
    return None


def read_timeline(path: Path) -> dict[str, Any]:
    """The part of a trace that a page shows. OSError; ConfigError for a file of something else."""
    try:
        facts = path.stat()
    except OSError as error:
        raise type(error)(f"cannot read the timeline {path}: {error.strerror}") from None
    return _read(path, facts.st_size, facts.st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _read(path: Path, nbytes: int, _changed: int) -> dict[str, Any]:
    if nbytes > _MOST_BYTES:
        raise _C.ConfigError(
            f"{path}: {nbytes} bytes are too many to show: trace fewer steps (--trace_steps 3 3)"
        )
    try:
        return _shown(json.loads(path.read_bytes()))
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise _C.ConfigError(
            f"{path}: no timeline ({type(error).__name__}: {str(error)[:80]}); expected a FILE of "
            "--trace or of the key zerorun.trace"
        ) from None


def _shown(trace: dict[str, Any]) -> dict[str, Any]:
    about, events = trace["otherData"], trace["traceEvents"]
    rows = {
        (event["pid"], event["tid"]): str(event["args"]["name"])
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    spans = [
        event
        for event in events
        if event["ph"] == "X"
        and all(is_figure(event.get(name)) and event[name] >= 0 for name in ("ts", "dur"))
    ]
    ranks = sorted({pid for pid, _ in rows})[:MOST_RANKS]
    wanted = [event for event in spans if event["pid"] in ranks]
    kept = heapq.nlargest(MOST_SPANS, wanted, key=lambda event: event["dur"])
    kept.sort(key=lambda event: (event["ts"], -event["dur"]))  # what is within comes on top
    labels: dict[str, int] = {}  # numbers for names that come often
    kinds: dict[str, int] = {}
    table: dict[tuple[int, int], list[list[float]]] = {}
    for event in kept:
        begin, duration = (round(event[name] / _US_PER_MS, 3) for name in ("ts", "dur"))
        kind = kinds.setdefault(event.get("cat", "other"), len(kinds))
        line = [begin, duration, kind, labels.setdefault(_label(event), len(labels))]
        table.setdefault((event["pid"], event["tid"]), []).append(line)
    ends = (event["ts"] + event["dur"] for event in wanted)
    return {
        "steps": about["steps"],
        "duration_ms": round(max(ends, default=0.0) / _US_PER_MS, 3),
        "kinds": list(kinds),
        "labels": list(labels),
        "rows": [
            {"rank": pid, "name": name, "spans": table[pid, tid]}
            for (pid, tid), name in sorted(rows.items())
            if (pid, tid) in table
        ],
        "hidden": [{part: one.get(part) for part in _PARTS} for one in about["hidden"]],
        "left_out": len(spans) - len(kept),
        "dropped": about.get("dropped_events", 0),
        "untimed": about.get("untimed_collectives", 0),
    }


def _label(event: dict[str, Any]) -> str:
    args = event.get("args", {})
    of = f" of {args['of']}" if args.get("of") else ""
    nbytes = f", {args['bytes']} bytes" if args.get("bytes") else ""
    return f"{event['name']}{of}{nbytes}"
