"""python -m zerorun.tune: searches for the fastest settings (`zerorun tune --help`)."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from threading import Event
from typing import Any

from zerorun import _C, config
from zerorun.command_line import exit_with, tell_error
from zerorun.tune.options import Options, parse
from zerorun.tune.search import Search, Trial, check_command, command_of, run_trial
from zerorun.whole_file import write_text

_INTERRUPTED = 130


def _table(trials: Sequence[Trial], best: Trial | None) -> str:
    head = (
        f"  {'trial':<28}{'micro-batch':>12}{'per s':>12}{'step ms':>12}{'memory MB':>12}  result\n"
    )
    lines = []
    for trial in trials:
        mark = "*" if trial is best else " "
        size = "-" if trial.micro_batch is None else str(trial.micro_batch)
        figures = f"{trial.rate:>12.1f}{trial.step_ms:>12.2f}{trial.peak_rss_bytes / 1e6:>12.0f}"
        result = f"{trial.status}{': ' if trial.reason else ''}{trial.reason}"
        lines.append(f"{mark} {trial.name:<28}{size:>12}{figures}  {result}\n")
    return head + "".join(lines)


def _keep(options: Options, search: Search) -> list[str] | None:
    """Writes the trials and the best configuration so far; returns its command."""
    folder = options.results
    folder.mkdir(parents=True, exist_ok=True)
    trials = [asdict(trial) for trial in search.trials]
    write_text(folder / "trials.json", json.dumps(trials, indent=1) + "\n")
    write_text(folder / "summary.txt", _table(search.trials, search.best))
    if search.best is None:
        return None
    best = folder / "ds_config_optimal.json"
    write_text(best, json.dumps(search.best_config, indent=2) + "\n")
    command = command_of(options, best, search.best_arguments)
    write_text(folder / "cmd_optimal.txt", shlex.join(command) + "\n")
    return command


def _tune(options: Options) -> tuple[Search, bool]:
    """The search, and whether it was interrupted."""
    check_command(options)
    given = config.read(options.config)
    given.pop("autotuning", None)

    def run(
        name: str, values: dict[str, Any], micro_batch: int | None, arguments: list[str]
    ) -> Trial:
        return run_trial(options, name, values, micro_batch, arguments, stop)

    def keep() -> None:
        _keep(options, search)
        trial = search.trials[-1]
        shown = f"{trial.rate:.1f} per s" if trial.status == "done" else trial.reason
        print(f"{trial.name}: {shown} ({trial.seconds:.1f} s)", flush=True)

    stop = Event()

    def interrupt(*_: Any) -> None:
        stop.set()  # an exception here would be lost within a destructor of Python
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, interrupt)
    search = Search(options, given, run)
    search.on_trial = keep
    try:
        search.run()
    except KeyboardInterrupt:
        stop.set()
        print("interrupted: the best so far is kept", file=sys.stderr)
    finally:
        signal.signal(signal.SIGINT, before)
    return search, stop.is_set()


def main(argv: list[str] | None = None) -> int:
    try:
        options = parse(sys.argv[1:] if argv is None else argv)
        search, interrupted = _tune(options)
        command = _keep(options, search)
    except (_C.Error, OSError, subprocess.SubprocessError) as error:
        return tell_error("zerorun tune", error)
    print(_table(search.trials, search.best), end="")
    if command is None:
        print(f"zerorun tune: error: no trial trained; see {options.results}", file=sys.stderr)
        return _INTERRUPTED if interrupted else 1
    print(
        f"best: {options.results / 'ds_config_optimal.json'}\n  {shlex.join(command)}", flush=True
    )
    if interrupted:
        return _INTERRUPTED
    if options.then_run:
        try:
            os.execve(command[0], command, os.environ)  # unlike execv's its error has the path
        except OSError as error:
            return tell_error("zerorun tune", error)
    return 0


if __name__ == "__main__":
    exit_with(main)
