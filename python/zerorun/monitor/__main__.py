"""python -m zerorun.monitor FILE: passes a metrics file on to monitors, also while it grows."""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zerorun import _C
from zerorun.command_line import Parser, exit_with, tell_error
from zerorun.metrics.files import MOST_CHARACTERS, check_version, parse_line, rank_in
from zerorun.monitor import MonitorMaster, step_events

_POLL_S = 0.5
_INTERRUPTED = 130


def _lines(path: Path, follow: bool, quiet_s: float) -> Iterator[dict[str, Any]]:
    """The objects of a file, whose last line may be cut; with `follow` until its run has ended, or
    nothing came for `quiet_s` seconds."""
    last_news = time.monotonic()
    while follow and not path.exists() and time.monotonic() - last_news < quiet_s:
        time.sleep(_POLL_S)
    rest = ""
    with path.open(encoding="utf-8", errors="replace") as file:
        while True:
            text = file.readline(MOST_CHARACTERS)
            if text:
                last_news = time.monotonic()
                rest += text
                if rest.endswith("\n"):
                    # A run that was killed leaves half a line, and the next one goes on after it.
                    yield parse_line(rest) or {}
                if rest.endswith("\n") or len(rest) > MOST_CHARACTERS:
                    rest = ""
            elif not follow or time.monotonic() - last_news > quiet_s:
                return
            else:
                time.sleep(_POLL_S)


def _pass_on(given: argparse.Namespace, master: MonitorMaster) -> int:
    """The number of steps. Of ranks that are mixed in a file, the first one's."""
    steps, rank = 0, None
    for line in _lines(given.file, given.follow, given.quiet):
        if "param_hash" in line:
            break
        if "zerorun_metrics" in line:
            check_version(line, given.file)
        if not isinstance(line.get("step"), int):
            continue
        own = rank_in(line, 0)
        rank = own if rank is None else rank
        if own == rank:
            scaled = line.get("loss_scale", 1) != 1
            master.write_events(step_events(line, loss_scale=scaled, times=True))
            steps += 1
    return steps


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="zerorun monitor",
        description="Passes the figures of a metrics file (zerorun train --metrics FILE) on to "
        "other programs.",
    )
    parser.add_argument("file", type=Path, help="metrics file: one JSON object per line")
    parser.add_argument(
        "--tensorboard", metavar="DIR", help="write event files for TensorBoard to this folder"
    )
    parser.add_argument(
        "--csv", metavar="DIR", help="write a CSV file for each scalar to this folder"
    )
    parser.add_argument(
        "--wandb", metavar="PROJECT", help="report to a run of this project of Weights & Biases"
    )
    parser.add_argument(
        "--comet", metavar="PROJECT", help="report to an experiment of this project of Comet"
    )
    parser.add_argument(
        "--follow", action="store_true", help="follow the file until the run has ended"
    )
    parser.add_argument(
        "--quiet",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="with --follow: stop if the file has not grown for this time (default: %(default)s)",
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
    try:
        master = MonitorMaster(sections)
        try:
            steps = _pass_on(given, master)
        except KeyboardInterrupt:
            steps = None
        master.close()
    except (_C.Error, OSError) as error:
        return tell_error("zerorun monitor", error)
    if steps is None:
        return _INTERRUPTED
    if master.failed:
        print(f"zerorun monitor: error: {', '.join(master.failed)} failed", file=sys.stderr)
        return 1
    if steps == 0:
        print(f"zerorun monitor: error: {given.file}: no line with a step in it", file=sys.stderr)
        return 2
    print(f"{steps} steps of {given.file}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    exit_with(main)
