"""Trial: one short run of a program with a configuration."""

import json
import signal
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from zerorun import _C
from zerorun.metrics.files import Tail, parse_line
from zerorun.tune.options import Options
from zerorun.whole_file import write_text

_POLL_S = 0.1
_PATIENCE_S = 15.0  # for a job that is told to end
_RATES = ("tokens_per_s", "samples_per_s")
_OFF = ("tensorboard", "csv_monitor", "wandb", "comet", "flops_profiler")


@dataclass
class Trial:
    """The result. `rate`: tokens per second, or samples where the program shows no tokens."""

    name: str
    micro_batch: int | None
    status: str = "failed"
    rate: float = 0.0
    step_ms: float = 0.0
    peak_rss_bytes: int = 0
    seconds: float = 0.0
    reason: str = ""
    parameters: int | None = None
    world_size: int | None = None

    def score(self, metric: str) -> float:
        """The higher the better; 0 for one that failed."""
        if self.status != "done":
            return 0.0
        return 1.0 / self.step_ms if metric == "latency" else self.rate


def command_of(options: Options, config: Path, more: list[str]) -> list[str]:
    """The command that trains with that configuration; `more`: an option and its value, or none."""
    program = _without(options.program, more[0]) if more else options.program
    if options.is_train:
        return [*options.launcher, *program, "--config", str(config), *more]
    named = str(options.config)
    program = [str(config) if word == named else word for word in program]
    return [*options.launcher, *program, *more]


def _without(program: list[str], option: str) -> list[str]:
    """The program's words without that option and its value."""
    kept, words = [], iter(program)
    for word in words:
        if word == option:
            next(words, None)
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return kept


def check_command(options: Options) -> None:
    """ConfigError for what the launcher refuses, so that no trial could start."""
    words = [*options.launcher, "--dry_run", *options.program]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise _C.ConfigError(f"{found.stderr.strip().removeprefix('[zerorun] error: ')}")


def run_trial(
    options: Options,
    name: str,
    values: dict[str, Any],
    micro_batch: int | None,
    arguments: list[str],
    stop: Event,
) -> Trial:
    """Runs the program until the last step that is timed. Once `stop` is set it ends the program
    and raises KeyboardInterrupt."""
    folder = options.results / name
    folder.mkdir(parents=True, exist_ok=True)
    metrics, file = folder / "metrics.jsonl", folder / "ds_config.json"
    metrics.unlink(missing_ok=True)
    last = options.autotuning["end_profile_step"]
    written = {key: value for key, value in values.items() if key not in _OFF}
    more = list(arguments)
    if options.is_train:
        more += ["--metrics", str(metrics), "--steps", str(last), "--save=", "--sample="]
    else:
        written["zerorun"] = (written.get("zerorun") or {}) | {"metrics": str(metrics.resolve())}
        written["zerorun"].pop("trace", None)
    write_text(file, json.dumps(written, indent=2) + "\n")
    trial, begin = Trial(name, micro_batch), time.monotonic()
    log = folder / "output.txt"
    with log.open("wb") as output:
        job = subprocess.Popen(
            command_of(options, file, more), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            in_time = _wait(job, metrics, last, options.trial_s, stop)
        finally:
            _end(job)
    trial.seconds = time.monotonic() - begin
    if _measure(trial, metrics, options.autotuning):
        trial.status = "done"
    elif not in_time:
        trial.reason = f"no step {last} within {options.trial_s:g} s"
    else:
        trial.reason = _reason(log, job.returncode)
    return trial


def _wait(
    job: subprocess.Popen[bytes], metrics: Path, last: int, seconds: float, stop: Event
) -> bool:
    """Until the step is in the metrics file or the job has ended; False if it took too long."""
    deadline, tail = time.monotonic() + seconds, None
    while job.poll() is None:
        if stop.is_set():
            raise KeyboardInterrupt
        if time.monotonic() > deadline:
            return False
        if tail is None and metrics.exists():
            tail = Tail(metrics)
        if tail is not None and any(f'"step":{last},' in line for line in tail.lines()):
            return True
        time.sleep(_POLL_S)
    return True


def _end(job: subprocess.Popen[bytes]) -> None:
    """The launcher ends its ranks."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if job.poll() is not None:
            return
        job.send_signal(number)
        try:
            job.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            continue


def _measure(trial: Trial, metrics: Path, section: dict[str, Any]) -> bool:
    """Medians of the steps that are timed; False without any."""
    if not metrics.exists() or metrics.stat().st_size == 0:
        return False
    first, last = section["start_profile_step"], section["end_profile_step"]
    steps = []
    for text in metrics.read_text(encoding="utf-8", errors="replace").splitlines():
        line = parse_line(text) or {}
        if "zerorun_metrics" in line:
            trial.world_size = line.get("world_size")
            trial.parameters = (line.get("run") or {}).get("parameters")
        elif first <= line.get("step", 0) <= last:
            steps.append(line)
    if not steps or steps[-1]["step"] < last:
        return False
    rate = next((name for name in _RATES if steps[-1].get(name)), None)
    if rate is None:
        return False
    trial.rate = statistics.median(line[rate] for line in steps)
    trial.step_ms = statistics.median(line["step_ms"] for line in steps)
    trial.peak_rss_bytes = max(line.get("peak_rss_bytes") or 0 for line in steps)
    return True


def _reason(log: Path, code: int | None) -> str:
    """The first line of the program's output that tells of an error, else the last one."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    error = next((line for line in lines if "rror" in line), lines[-1] if lines else "no output")
    return f"exit code {code}: {error[:300]}"
