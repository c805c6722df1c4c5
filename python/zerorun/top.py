"""The ranks of a run in a terminal, live (`zerorun top RUN`), from its metrics files."""

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerorun import _C
from zerorun.command_line import Parser, exit_with, tell_error
from zerorun.metrics import files as metrics_files
from zerorun.report.reader import rank_of, run_files

_TAIL_BYTES = 1 << 16
_CLEAR = "\x1b[H\x1b[J"
_Line = dict[str, Any]


class Latest:
    """The last step of each rank that wrote it, whenever that was."""

    def __init__(self) -> None:
        self.lines: dict[int, _Line] = {}
        self.ages_s: dict[int, float] = {}
        self.ended = False


def _tail(path: Path) -> list[str]:
    """The last complete lines of a file of any length."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        text = file.read()
    lines = text.split(b"\n")[:-1]  # what follows the last line break is being written
    whole = lines if size <= _TAIL_BYTES else lines[1:]
    return [line.decode(errors="replace") for line in whole]


def latest(path: Path) -> Latest:
    """ConfigError where there is no such file, or one of something else."""
    if not path.exists():
        raise _C.ConfigError(f"{path}: no such file or folder; expected the FILE of --metrics")
    found = Latest()
    for file in run_files(path):
        head = metrics_files.first_line(file)
        if "zerorun_metrics" in head:
            metrics_files.check_version(head, file)
        rank, age = rank_of(file), time.time() - file.stat().st_mtime
        for text in _tail(file):
            line = metrics_files.parse_line(text) or {}
            if isinstance(line.get("step"), int):
                own = metrics_files.rank_in(line, rank)
                found.lines[own], found.ages_s[own] = line, age
                found.ended = False
            found.ended = found.ended or "param_hash" in line
    return found


def _scaled(value: float, units: tuple[str, ...], base: float) -> str:
    for unit in units[:-1]:
        if value < base:
            return f"{value:.4g}{unit}"
        value /= base
    return f"{value:.4g}{units[-1]}"


def _number(line: _Line, *names: str) -> float | None:
    return next((line[name] for name in names if metrics_files.is_figure(line.get(name))), None)


def _compute_ms(line: _Line) -> float | None:
    whole, forward = _number(line, "fwd_bwd_ms"), _number(line, "forward_ms")
    if whole is None and forward is not None:
        waits = _number(line, "comm_ms") or 0.0
        whole = max(0.0, forward + (_number(line, "backward_ms") or 0.0) - waits)
    return whole


_Cell = Callable[[_Line], float | None]


def _share(name: str) -> _Cell:
    def cell(line: _Line) -> float | None:
        shares = line.get("step_shares")
        return _number(shares, name) if isinstance(shares, dict) else None

    return cell


_COLUMNS: tuple[tuple[str, _Cell, Callable[[float], str]], ...] = (
    ("step", lambda line: _number(line, "step"), lambda v: f"{v:.0f}"),
    ("loss", lambda line: _number(line, "loss"), lambda v: f"{v:.4f}"),
    ("norm", lambda line: _number(line, "grad_norm"), lambda v: f"{v:.3g}"),
    ("step ms", lambda line: _number(line, "step_ms"), lambda v: f"{v:.1f}"),
    ("compute", _compute_ms, lambda v: f"{v:.1f}"),
    ("comm", lambda line: _number(line, "comm_ms"), lambda v: f"{v:.1f}"),
    *(
        (name, _share(name), lambda v: f"{100 * v:.0f}%")
        for name in ("waited", "data", "copy", "save")
    ),
    ("optimizer", lambda line: _number(line, "optimizer_ms"), lambda v: f"{v:.1f}"),
    (
        "tokens/s",
        lambda line: _number(line, "tokens_per_s"),
        lambda v: _scaled(v, ("", "k", "M"), 1e3),
    ),
    ("samples/s", lambda line: _number(line, "samples_per_s"), lambda v: f"{v:.4g}"),
    (
        "memory",
        lambda line: _number(line, "gpu_bytes", "rss_bytes", "peak_rss_bytes"),
        lambda v: _scaled(v, ("B", "K", "M", "G", "T"), 1024),
    ),
)


def table(found: Latest, name: str) -> list[str]:
    """The lines that are shown; columns that no rank has are left out."""
    cells = [
        (head, [(cell(found.lines[rank]), show) for rank in sorted(found.lines)])
        for head, cell, show in _COLUMNS
    ]
    columns = [("rank", [str(rank) for rank in sorted(found.lines)])]
    for head, values in cells:
        if any(value is not None for value, _ in values):
            columns.append((head, ["-" if v is None else show(v) for v, show in values]))
    columns.append(("ago", [f"{found.ages_s[rank]:.0f} s" for rank in sorted(found.lines)]))
    widths = [max(len(head), *map(len, column)) for head, column in columns]
    rows = [[head for head, _ in columns]]
    rows += [[column[i] for _, column in columns] for i in range(len(found.lines))]
    text = ["  ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)) for row in rows]
    ranks = f"{len(found.lines)} rank{'' if len(found.lines) == 1 else 's'}"
    lines = [f"{ranks}{', ended' if found.ended else ''}: {name}", *text]
    late = [metrics_files.straggler_text(line) for line in found.lines.values()]
    return lines + [one for one in late if one]


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="zerorun top",
        description="Shows the last step of each rank of a run: in a terminal it is updated, "
        "otherwise printed once. Times are in milliseconds per step.",
    )
    parser.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        help="metrics file of a run, or a folder with the files of its ranks",
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="time between two updates (default: %(default)s)",
    )
    given = parser.parse_args(argv)
    if not 0.1 <= given.interval <= 3600.0:
        parser.error(f"--interval: got {given.interval:g}, expected 0.1 to 3600 seconds")
    return given


def main(argv: list[str] | None = None) -> int:
    given = _arguments(argv)
    live = sys.stdout.isatty()
    try:
        while True:
            found = latest(given.run)
            if not found.lines and not live:
                raise _C.ConfigError(
                    f"{given.run}: no line with a step in it; expected a file of one JSON object "
                    "a step, as `zerorun train --metrics FILE` writes it"
                )
            name = str(given.run)
            lines = table(found, name) if found.lines else [f"{name}: no step yet"]
            if not live:
                print("\n".join(lines))
                return 0
            size = shutil.get_terminal_size()
            shown = [line[: size.columns] for line in lines[: size.lines - 1]]
            print(_CLEAR + "\n".join(shown), flush=True)
            if found.ended:
                return 0
            time.sleep(given.interval)
    except KeyboardInterrupt:
        return 0
    except (_C.Error, OSError) as error:
        return tell_error("zerorun top", error)


if __name__ == "__main__":
    exit_with(main)
