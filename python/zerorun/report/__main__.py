"""python -m zerorun.report RUN... -o report.html: a page about runs, from their metrics files."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from zerorun import _C
from zerorun.command_line import Parser, tell_error
from zerorun.report.page import data_of, html
from zerorun.report.reader import Run, read_run
from zerorun.report.serve import PageServer
from zerorun.whole_file import write_text


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="zerorun report",
        description="A page about runs: loss, throughput, memory, times, communication. It works "
        "from disk, without a network.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="metrics file of a run, or a folder of the files of its ranks",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page (default: %(default)s)",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="timeline of the run, or of each, in their order; default: what the configuration "
        "names or the folder has",
    )
    parser.add_argument(
        "--serve",
        action="store_true",
        help="instead of writing it, serve a page to this machine that follows the runs",
    )
    parser.add_argument(
        "--port", type=int, default=0, help="of --serve (default: a free one)", metavar="PORT"
    )
    return parser.parse_args(argv)


def _read(paths: Sequence[Path], traces: Sequence[Path] = ()) -> list[Run]:
    if len(traces) > len(paths):
        raise _C.ConfigError(
            f"--trace: got {len(traces)} files, expected one for each RUN at most, {len(paths)}"
        )
    pairs = itertools.zip_longest(paths, traces)
    runs = [read_run(path, trace) for path, trace in pairs]
    names = [run.name for run in runs]
    for run, path in zip(runs, paths, strict=True):
        if names.count(run.name) > 1:  # of other folders
            run.name = str(path)
    return runs


def _serve(read: Callable[[], list[Run]], port: int) -> None:
    read()  # what is wrong shows before a browser asks
    server = PageServer(lambda: html(read(), live=True), lambda: data_of(read(), live=True), port)
    print(f"{server.url}\nCtrl-C ends it.", flush=True)
    try:
        server.run()
    except KeyboardInterrupt:
        print(file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    given = _arguments(argv)
    try:
        if given.serve:
            _serve(lambda: _read(given.runs, given.trace), given.port)
        else:
            runs = _read(given.runs, given.trace)
            write_text(given.output, html(runs))
            steps = sum(run.first.columns.steps for run in runs)
            count = f"{len(runs)} run{'s' if len(runs) != 1 else ''}"
            print(_C.printable(f"{given.output}: {count}, {steps} steps"))
    except (_C.Error, OSError) as error:
        return tell_error("zerorun report", error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
