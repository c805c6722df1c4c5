"""python -m zerorun.monitor FILE: passes a metrics file on to monitors, also while it grows."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zerorun import _C
from zerorun.monitor.events import step_events
from zerorun.monitor.master import MonitorMaster

_POLL_S = 0.5


def _lines(path: Path, follow: bool, quiet_s: float) -> Iterator[dict[str, Any]]:
    """The objects of a file, whose last line may be cut; with `follow` until its run has ended, or
    nothing came for `quiet_s` seconds."""
    last_news = time.monotonic()
    while follow and not path.exists() and time.monotonic() - last_news < quiet_s:
        time.sleep(_POLL_S)
    rest = ""
    with path.open(encoding="utf-8") as file:
        while True:
            text = file.readline()
            if text:
                last_news = time.monotonic()
                rest += text
                if rest.endswith("\n"):
                    line, rest = rest, ""
                    yield _parse(line, path)
            elif not follow or time.monotonic() - last_news > quiet_s:
                return
            else:
                time.sleep(_POLL_S)


def _parse(line: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}  # a run that was killed leaves half a line, and the next one goes on after it
    if not isinstance(found, dict):
        raise _C.ConfigError(f"{path}: got the line {line[:60]!r}, expected one JSON object a line")
    return found


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="zerorun monitor",
        description="Passes the figures of a metrics file (zerorun train --metrics FILE) on.",
    )
    parser.add_argument("file", type=Path, help="file of one JSON object a line")
    parser.add_argument("--tensorboard", metavar="DIR", help="event files for TensorBoard")
    parser.add_argument("--csv", metavar="DIR", help="a CSV file for each scalar")
    parser.add_argument("--wandb", metavar="PROJECT", help="a run of Weights & Biases")
    parser.add_argument("--comet", metavar="PROJECT", help="an experiment of Comet")
    parser.add_argument("--follow", action="store_true", help="go on until the run has ended")
    parser.add_argument(
        "--quiet",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="with --follow: end when nothing came for so long (default: %(default)s)",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    given = _arguments(argv)
    sections: dict[str, dict[str, Any]] = {}
    for name, option in (("tensorboard", given.tensorboard), ("csv_monitor", given.csv)):
        if option:
            sections[name] = {"enabled": True, "output_path": option, "job_name": given.file.stem}
    for name, option in (("wandb", given.wandb), ("comet", given.comet)):
        if option:
            sections[name] = {"enabled": True, "project": option}
    if not sections:
        print(
            "zerorun monitor: error: give one of --tensorboard, --csv, --wandb, --comet",
            file=sys.stderr,
        )
        return 2
    steps = 0
    try:
        master = MonitorMaster(sections)
        for line in _lines(given.file, given.follow, given.quiet):
            if "param_hash" in line:
                break
            if "step" in line:
                scaled = line.get("loss_scale", 1) != 1
                master.write_events(step_events(line, loss_scale=scaled, times=True))
                steps += 1
        master.close()
    except (_C.Error, OSError) as error:
        print(f"zerorun monitor: error: {error}", file=sys.stderr)
        return 1
    print(f"{steps} steps of {given.file}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
