"""Chrome's trace event format, as far as a viewer needs it.

After "Trace Event Format" (Google, 2016): the JSON Object Format, complete events ("X") and
metadata ("M").
"""

import itertools
import math
from collections import defaultdict
from typing import Any

_METADATA = {"process_name": "name", "process_sort_index": "sort_index"}
_METADATA |= {"thread_name": "name", "thread_sort_index": "sort_index"}
_UNITS = {"reductions": "reduction", "gathers": "gather"}
_SLACK_US = 1e-3  # of decimal numbers


def problems_of(trace: dict[str, Any]) -> list[str]:
    """What a viewer could not show, or would show otherwise than it was."""
    found = []
    if trace.get("displayTimeUnit") not in {"ms", "ns"}:
        found.append("displayTimeUnit")
    rows: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    named = set()
    for event in trace["traceEvents"]:
        if not all(isinstance(event.get(key), int) for key in ("pid", "tid")):
            found.append(f"no row: {event}")
        elif event["ph"] == "M":
            kind = str if event["name"].endswith("_name") else int
            if not isinstance(event["args"].get(_METADATA[event["name"]]), kind):
                found.append(f"metadata: {event}")
            if event["name"] == "thread_name":
                named.add((event["pid"], event["tid"]))
        elif event["ph"] == "X":
            rows[event["pid"], event["tid"]].append(event)
            times = [event["ts"], event["dur"]]
            if not all(math.isfinite(time) and time >= 0 for time in times) or not event["name"]:
                found.append(f"times: {event}")
        else:
            found.append(f"phase: {event}")
    found += [f"row without a name: {row}" for row in rows if row not in named]
    for row, events in rows.items():
        found += [f"{row}: {text}" for text in _badly_nested(events)]
    return found


def _badly_nested(events: list[dict[str, Any]]) -> list[str]:
    """Events of one row lie one within the other or apart."""
    found, open_ends = [], []
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        end = event["ts"] + event["dur"]
        while open_ends and open_ends[-1] <= event["ts"] + _SLACK_US:
            open_ends.pop()
        if open_ends and end > open_ends[-1] + _SLACK_US:
            found.append(f"{event} ends after what it begins in, {open_ends[-1]}")
        open_ends.append(end)
    return found


def hidden_part(trace: dict[str, Any], rank: int, which: str) -> float | None:
    """|busy and compute without wait| / |busy|, from the spans alone, at all their ends."""
    own = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == rank]
    edges = sorted({time for e in own for time in (e["ts"], e["ts"] + e["dur"])})
    kinds = {kind: [e for e in own if e["cat"] == kind] for kind in {e["cat"] for e in own}}

    def covers(kind: str, time: float) -> bool:
        return any(e["ts"] <= time < e["ts"] + e["dur"] for e in kinds.get(kind, []))

    busy = hidden = 0.0
    for begin, end in itertools.pairwise(edges):
        middle = (begin + end) / 2
        if covers(_UNITS[which], middle):
            busy += end - begin
            if covers("compute", middle) and not covers("wait", middle):
                hidden += end - begin
    return hidden / busy if busy else None
