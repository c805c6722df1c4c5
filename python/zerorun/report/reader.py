"""Run: what the metrics files of one run say."""

import re
from pathlib import Path
from typing import Any

from zerorun import _C
from zerorun.command_line import ProgressBar
from zerorun.metrics import files as metrics_files
from zerorun.metrics.files import parse_line
from zerorun.report.timeline import find_trace, read_timeline

_RANK_IN_NAME = re.compile(r"\.rank(\d+)$")


class RankFigures:
    """One rank of a run."""

    def __init__(self) -> None:
        self.columns = Columns()
        self.memory: dict[str, float] = {}  # the most in each category
        self.peak_rss: float | None = None
        self.collectives: dict[str, list[float]] = {}  # calls, bytes, and ms where they are known

    def add(self, line: dict[str, Any]) -> None:
        self.columns.add(line)
        for name, nbytes in (line.get("memory_peak") or {}).items():
            if metrics_files.is_figure(nbytes):
                self.memory[name] = max(self.memory.get(name, 0), nbytes)
        if metrics_files.is_figure(line.get("peak_rss_bytes")):
            self.peak_rss = max(self.peak_rss or 0, line["peak_rss_bytes"])
        for name, figures in (line.get("collectives") or {}).items():
            sums = self.collectives.setdefault(name, [0, 0, 0.0])
            for i, value in enumerate(figures[: len(sums)]):
                sums[i] += value if metrics_files.is_figure(value) else 0


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
        self.straggler: str | None = None  # the last one's sentence
        self.straggler_steps = 0  # of rank 0's lines, that named one

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
        metrics_files.check_version(head, where)
        if isinstance(head.get("run"), dict):
            self.about = self.about or head["run"]
        if isinstance(head.get("world_size"), int):
            self.world_size = head["world_size"]
        return metrics_files.rank_in(head, 0)

    def _add_step(self, line: dict[str, Any], rank: int) -> None:
        figures = self.ranks.setdefault(metrics_files.rank_in(line, rank), RankFigures())
        try:
            figures.add(line)
            if (text := metrics_files.straggler_text(line)) is not None:
                self.straggler, self.straggler_steps = text, self.straggler_steps + 1
        except (TypeError, ValueError, AttributeError):
            self.bad_lines += 1

    @property
    def settings(self) -> list[Any]:
        """[pointer, value, is the default] of each setting."""
        config = self.about.get("config")
        settings = config if isinstance(config, list) else []
        return [one for one in settings if isinstance(one, list) and len(one) == 3]

    def setting(self, pointer: str) -> Any:
        return next((value for name, value, _ in self.settings if name == pointer), None)

    @property
    def first(self) -> RankFigures:
        """Rank 0, or the lowest that is there."""
        return self.ranks[min(self.ranks)]


def run_files(path: Path) -> list[Path]:
    """The metrics files of a run: those of its ranks beside `path`, or in that folder.
    ConfigError for a folder of several runs."""
    if path.is_dir():
        files = sorted(path.glob("*.jsonl"))
        runs = [f.name for f in files if not _RANK_IN_NAME.search(f.stem) and _is_metrics(f)]
        if len(runs) > 1:
            raise _C.ConfigError(
                f"{path}: metrics files of {len(runs)} runs, {', '.join(runs)}; "
                f"expected those of one: give its file, such as {path / runs[0]}"
            )
        return files
    beside = path.parent.glob(f"{path.stem}.rank*{path.suffix}")
    return [path, *sorted(other for other in beside if _RANK_IN_NAME.search(other.stem))]


def _is_metrics(file: Path) -> bool:
    return file.is_file() and bool(
        metrics_files.first_line(file).keys() & {"zerorun_metrics", "step"}
    )


def rank_of(file: Path) -> int:
    """The rank that the name of a metrics file says."""
    named = _RANK_IN_NAME.search(file.stem)
    return int(named.group(1)) if named else 0


class RunReader:
    """Reads a run from its metrics file, whose other ranks' files lie beside it, or from a folder
    of them, and its timeline: of `trace`, else where the configuration or the folder has one. A
    later look reads what has been written since the one before."""

    def __init__(self, path: Path, trace: Path | None = None, name: str | None = None) -> None:
        self._path, self._trace, self._name = path, trace, name
        self._run, self._tails = self._begin()

    def _begin(self) -> tuple[Run, dict[Path, metrics_files.Tail]]:
        name = self._path.stem if self._path.is_file() else self._path.resolve().name
        return Run(self._name or name), {}

    def look(self, bar: ProgressBar | None = None, follow: bool = True) -> Run:
        """`follow`: there will be other looks, so a line without an end waits. ConfigError where
        there is no run, or for a file of something else."""
        if not self._path.exists():
            raise _C.ConfigError(
                f"{self._path}: no such file or folder; expected the FILE of --metrics"
            )
        if not all(tail.goes_on() for tail in self._tails.values()):
            self._run, self._tails = self._begin()
        files = run_files(self._path)
        try:
            for file in files:
                self._read(file, bar, follow)
        except _C.Error:
            self._run, self._tails = self._begin()
            raise
        if not self._run.ranks:
            what = "no file *.jsonl in it" if not files else "no line with a step in it"
            raise _C.ConfigError(
                f"{self._path}: {what}; expected a file of one JSON object a step, as `zerorun "
                "train --metrics FILE` or the key zerorun.metrics of a configuration writes it"
            )
        found, named = self._trace, self._run.setting("/zerorun/trace/file")
        if found is None and isinstance(named, str) and Path(named).is_file():
            found = Path(named)
        if found is None and self._path.is_dir():
            found = find_trace(self._path)
        self._run.timeline = None if found is None else read_timeline(found)
        return self._run

    def _read(self, file: Path, bar: ProgressBar | None, follow: bool) -> None:
        world_size = self._run.world_size
        if world_size is not None and rank_of(file) >= world_size:
            return  # of a run before, with more ranks
        tail = self._tails.setdefault(file, metrics_files.Tail(file, rank_of(file)))
        for text in tail.lines(follow):
            if text.strip():
                tail.rank = self._run.add_line(text, tail.rank, file)
            if bar is not None:
                bar.show(tail.at, tail.nbytes)


def read_run(path: Path, trace: Path | None = None) -> Run:
    """The same in one look."""
    with ProgressBar(f"reading {path}") as bar:
        return RunReader(path, trace).look(bar, follow=False)


# --- figures by step, thinned out so that a page can show any number of them ---

MOST = 4000  # points of a column
# Milliseconds of a step and of its parts.
TIMES = (
    "step_ms",
    "forward_ms",
    "backward_ms",
    "fwd_bwd_ms",
    "reduce_ms",
    "gather_ms",
    "comm_ms",
    "optimizer_ms",
    "other_ms",
    "reduce_hidden_ms",
    "gather_hidden_ms",
    "offload_ms",
    "offload_hidden_ms",
    "data_ms",
    "checkpoint_ms",
)
# Figures that are shown over the steps.
NAMES = (
    "loss",
    "lr",
    "grad_norm",
    "clipped_grad_norm",
    "loss_scale",
    "tokens_per_s",
    "samples_per_s",
    "mfu",
    *TIMES,
    "call_ms",
    "model_state_bytes",
    "rss_bytes",
    "gpu_bytes",
)
_AS_IT_WAS = "loss_scale"  # of the last step: no other one had a mean of them


class _Point:
    """The mean of the figures of some consecutive steps."""

    def __init__(self, step: int) -> None:
        self.step = step  # the last of them
        self.sums: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def add(self, line: dict[str, Any]) -> None:
        for name in NAMES:
            value = line.get(name)
            if metrics_files.is_figure(value):
                self.sums[name] = self.sums.get(name, 0.0) + value
                self.counts[name] = self.counts.get(name, 0) + 1
        self._keep_last(line.get(_AS_IT_WAS))

    def merge(self, later: "_Point") -> None:
        self.step = later.step
        for name, value in later.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + later.counts[name]
        self._keep_last(later.sums.get(_AS_IT_WAS))

    def _keep_last(self, value: object) -> None:
        if metrics_files.is_figure(value):
            self.sums[_AS_IT_WAS], self.counts[_AS_IT_WAS] = value, 1

    def mean(self, name: str) -> float | None:
        return self.sums[name] / self.counts[name] if name in self.sums else None


class Columns:
    """Figures of the steps of one rank. Points are means of as many steps as are needed to stay
    below twice MOST."""

    def __init__(self) -> None:
        self.skipped: list[int] = []  # the first ones
        self.skipped_count = 0
        self.scale_falls = 0
        self._scale: float | None = None
        self.steps = 0
        self._points: list[_Point] = []
        self._steps_per_point = 1
        self._in_last = 0

    def add(self, line: dict[str, Any]) -> None:
        step = int(line["step"])
        if self._points and step <= self._points[-1].step:
            self._go_back(step)
        self.steps += 1
        if line.get("skipped") is True:
            self.skipped_count += 1
            if len(self.skipped) < MOST:
                self.skipped.append(step)
        scale = line.get("loss_scale")
        if metrics_files.is_figure(scale):
            self.scale_falls += self._scale is not None and scale < self._scale
            self._scale = scale
        if not self._points or self._in_last == self._steps_per_point:
            self._points.append(_Point(step))
            self._in_last = 0
        self._points[-1].step = step
        self._points[-1].add(line)
        self._in_last += 1
        if len(self._points) >= 2 * MOST:
            self._thin()

    def _go_back(self, step: int) -> None:
        """A run that resumed repeats steps: what it does now counts."""
        while self._points and self._points[-1].step >= step:
            self._points.pop()
        kept = [earlier for earlier in self.skipped if earlier < step]
        self.skipped_count -= len(self.skipped) - len(kept)
        self.skipped, self._scale = kept, None
        self._in_last = self._steps_per_point

    def _thin(self) -> None:
        points = self._points
        for i in range(0, len(points) - 1, 2):
            points[i].merge(points[i + 1])
        self._points = points[::2]
        self._steps_per_point *= 2
        self._in_last = self._steps_per_point

    def table(self) -> dict[str, list[Any]]:
        """By name, with ``step``; names that no step has are left out."""
        found: dict[str, list[Any]] = {"step": [point.step for point in self._points]}
        for name in NAMES:
            means = [point.mean(name) for point in self._points]
            if any(mean is not None for mean in means):
                found[name] = [None if mean is None else float(f"{mean:.6g}") for mean in means]
        return found

    def mean(self, name: str, skip: int = 0) -> float | None:
        """Over all steps, without the first `skip` points, where there are more."""
        points = self._points[skip:] if len(self._points) > 2 * skip else self._points
        count = sum(point.counts.get(name, 0) for point in points)
        return sum(point.sums.get(name, 0.0) for point in points) / count if count else None
