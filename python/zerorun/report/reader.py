"""Run: what the metrics files of one run say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TextIO

from zerorun import _C
from zerorun.metrics.lines import check_version, is_figure, lines_of, parse_line, rank_in
from zerorun.report.columns import Columns
from zerorun.report.timeline import find_trace, read_timeline

__all__ = ["Run", "rank_of", "read_run", "run_files"]

_PARTS = 3  # of a setting
_RANK_IN_NAME = re.compile(r"\.rank(\d+)$")


class RankFigures:
    """One rank of a run."""

    def __init__(self) -> None:
        self.columns = Columns()
        self.memory: dict[str, float] = {}  # the most in each category
        self.peak_rss: float | None = None
        self.collectives: dict[str, list[int]] = {}

    def add(self, line: dict[str, Any]) -> None:
        self.columns.add(line)
        for name, nbytes in (line.get("memory_peak") or {}).items():
            if is_figure(nbytes):
                self.memory[name] = max(self.memory.get(name, 0), nbytes)
        if is_figure(line.get("peak_rss_bytes")):
            self.peak_rss = max(self.peak_rss or 0, line["peak_rss_bytes"])
        for name, (calls, nbytes) in (line.get("collectives") or {}).items():
            sums = self.collectives.setdefault(name, [0, 0])
            sums[0] += calls
            sums[1] += nbytes


class Run:
    """The figures of a run's ranks, read line by line, so that files of any length fit."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ranks: dict[int, RankFigures] = {}
        self.world_size: int | None = None
        self.about: dict[str, Any] = {}
        self.bad_lines = 0
        self.timeline: dict[str, Any] | None = None
        self.param_hash: str | None = None

    def add_line(self, text: str, rank: int, where: Path) -> int:
        """The rank that the next lines belong to."""
        line = parse_line(text)
        if line is None:
            self.bad_lines += 1
        elif "zerorun_metrics" in line:
            rank = self._add_head(line, where)
        elif "param_hash" in line:
            self.param_hash = str(line["param_hash"])
        elif isinstance(line.get("step"), int):
            self._add_step(line, rank)
        else:
            self.bad_lines += 1
        return rank

    def _add_head(self, head: dict[str, Any], where: Path) -> int:
        check_version(head, where)
        if isinstance(head.get("run"), dict):
            self.about = self.about or head["run"]
        if isinstance(head.get("world_size"), int):
            self.world_size = head["world_size"]
        return rank_in(head, 0)

    def _add_step(self, line: dict[str, Any], rank: int) -> None:
        figures = self.ranks.setdefault(rank_in(line, rank), RankFigures())
        try:
            figures.add(line)
        except (TypeError, ValueError, AttributeError):
            self.bad_lines += 1

    @property
    def settings(self) -> list[Any]:
        """[pointer, value, is the default] of each setting."""
        config = self.about.get("config")
        settings = config if isinstance(config, list) else []
        return [one for one in settings if isinstance(one, list) and len(one) == _PARTS]

    def setting(self, pointer: str, default: Any = None) -> Any:
        return next((value for name, value, _ in self.settings if name == pointer), default)

    @property
    def first(self) -> RankFigures:
        """Rank 0, or the lowest that is there."""
        return self.ranks[min(self.ranks)]


def run_files(path: Path) -> list[Path]:
    """The metrics files of a run: those of its ranks beside `path`, or in that folder."""
    if path.is_dir():
        return sorted(path.glob("*.jsonl"))
    beside = path.parent.glob(f"{path.stem}.rank*{path.suffix}")
    return [path, *sorted(other for other in beside if _RANK_IN_NAME.search(other.stem))]


def rank_of(file: Path) -> int:
    """The rank that the name of a metrics file says."""
    named = _RANK_IN_NAME.search(file.stem)
    return int(named.group(1)) if named else 0


def read_run(path: Path, trace: Path | None = None) -> Run:
    """A run from its metrics file, whose other ranks' files lie beside it, or from a folder of
    them, and its timeline: of `trace`, else where the configuration or the folder has one.
    ConfigError where there is none, or for a file of something else."""
    if not path.exists():
        raise _C.ConfigError(f"{path}: no such file or folder; expected the FILE of --metrics")
    files = run_files(path)
    run = Run(path.stem if path.is_file() else path.resolve().name)
    for file in files:
        with file.open(encoding="utf-8", errors="replace") as lines:
            _read(run, lines, rank_of(file), file)
    if not run.ranks:
        what = "no file *.jsonl in it" if not files else "no line with a step in it"
        raise _C.ConfigError(
            f"{path}: {what}; expected a file of one JSON object a step, as `zerorun train "
            "--metrics FILE` or the key zerorun.metrics of a configuration writes it"
        )
    found = trace or _trace_of(run, path)
    if found is not None:
        run.timeline = read_timeline(found)
    return run


def _trace_of(run: Run, path: Path) -> Path | None:
    named = run.setting("/zerorun/trace/file")
    if isinstance(named, str) and Path(named).is_file():
        return Path(named)
    return find_trace(path) if path.is_dir() else None


def _read(run: Run, lines: TextIO, rank: int, file: Path) -> None:
    for text in lines_of(lines):
        if text.strip():
            rank = run.add_line(text, rank, file)
