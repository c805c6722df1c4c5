"""python -m zerorun.report RUN... -o report.html: a page about runs, from their metrics files."""

import argparse
import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from zerorun import _C
from zerorun.command_line import Parser, ProgressBar, exit_with, tell_error
from zerorun.report.page import PageServer, data_of, html
from zerorun.report.reader import Run, RunReader
from zerorun.whole_file import write_text

_Answer = TypeVar("_Answer")


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="zerorun report",
        description="Writes an HTML page about runs: loss, throughput, memory, times, "
        "communication. The page is one file and needs no network.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="metrics file of a run, or a folder with the files of its ranks",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="file for the page (default: %(default)s)",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="timeline of the run; repeat it for several runs, in their order. Default: the one "
        "that the configuration names or the folder contains",
    )
    parser.add_argument(
        "--serve",
        action="store_true",
        help="instead of writing a page, serve one on this machine that follows the runs",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=0,
        help="port for --serve (default: a free port)",
        metavar="PORT",
    )
    return parser.parse_args(argv)


def _readers(paths: Sequence[Path], traces: Sequence[Path]) -> list[RunReader]:
    if len(traces) > len(paths):
        raise _C.ConfigError(
            f"--trace: got {len(traces)} files, expected one for each RUN at most, {len(paths)}"
        )
    names = [path.stem for path in paths]
    return [
        RunReader(path, trace, str(path) if names.count(path.stem) > 1 else None)  # other folders
        for path, trace in itertools.zip_longest(paths, traces)
    ]


def _read(readers: Sequence[RunReader], follow: bool) -> list[Run]:
    with ProgressBar("reading") as bar:
        return [reader.look(bar, follow) for reader in readers]


def _serve(readers: Sequence[RunReader], port: int) -> None:
    lock = threading.Lock()  # a look changes the runs

    def answer(make: Callable[[list[Run]], _Answer]) -> Callable[[], _Answer]:
        def locked() -> _Answer:
            with lock:
                return make(_read(readers, follow=True))

        return locked

    _read(readers, follow=True)  # what is wrong shows before a browser asks
    page = answer(lambda runs: html(runs, live=True))
    data = answer(lambda runs: data_of(runs, live=True))
    server = PageServer(page, data, port)
    print(f"{server.url}\nCtrl-C ends it.", flush=True)
    try:
        server.run()
    except KeyboardInterrupt:
        print(file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    given = _arguments(argv)
    try:
        readers = _readers(given.runs, given.trace)
        if given.serve:
            _serve(readers, given.port)
        else:
            runs = _read(readers, follow=False)
            write_text(given.output, html(runs))
            steps = sum(run.first.columns.steps for run in runs)
            count = f"{len(runs)} run{'s' if len(runs) != 1 else ''}"
            print(_C.printable(f"{given.output}: {count}, {steps} steps"))
    except (_C.Error, OSError) as error:
        return tell_error("zerorun report", error)
    return 0


if __name__ == "__main__":
    exit_with(main)
