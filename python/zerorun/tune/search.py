"""Search: which settings are tried, one kind after another from the best so far."""

import copy
import json
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from zerorun import _C
from zerorun.metrics.files import Tail, parse_line
from zerorun.tune.options import Options
from zerorun.whole_file import write_text

_MICRO_BATCH = "train_micro_batch_size_per_gpu"
_TRAIN_MICRO_BATCH = 8  # of train, where nothing is given
_BUCKETS = 32  # of the model's gradients, where smaller buckets are tried
_OFFLOADED = 3  # settings that are tried where nothing fits without offloading
_LEAST_STAGE = {
    "zero_hpz_partition_size": 3,
    "zero_quantized_nontrainable_weights": 3,
    "zero_quantized_weights": 1,
    "zero_quantized_gradients": 1,
    "zeropp_loco_param": 1,
    "mics_shard_size": 1,
}


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


RunTrial = Callable[[str, dict[str, Any], int | None, list[str]], Trial]


class Search:
    """The trials and the best of them. `on_trial` is called after each."""

    def __init__(self, options: Options, given: dict[str, Any], run: RunTrial) -> None:
        self.options = options
        self.on_trial: Callable[[], Any] = lambda: None
        self.trials: list[Trial] = []
        self.best: Trial | None = None
        self.best_config = copy.deepcopy(given)
        self.best_arguments: list[str] = []
        self._section = options.autotuning
        self._run = run
        self._idle = 0  # trials since the best one
        self._names: set[str] = set()

    def run(self) -> None:
        """All trials. What is found so far stays when one raises."""
        self._try("as given", self.best_config, self._micro_batch())
        for step in (self._smaller, self._stages, self._larger, self._communication):
            for name, values, micro_batch in step():
                idle = self._idle >= self._section["tuner_early_stopping"]
                if idle or len(self.trials) >= self._section["tuner_num_trials"]:
                    return
                self._try(name, values, micro_batch)

    def _try(self, name: str, values: dict[str, Any], micro_batch: int | None) -> None:
        if name in self._names:
            return
        self._names.add(name)
        option = self._option()
        arguments = [] if option is None or micro_batch is None else [option, str(micro_batch)]
        trial = self._run(name.replace(" ", "_"), values, micro_batch, arguments)
        self.trials.append(trial)
        metric = self._section["metric"]
        if trial.score(metric) > (self.best.score(metric) if self.best else 0.0):
            self.best, self.best_config, self.best_arguments = trial, values, arguments
            self._idle = 0
        else:
            self._idle += 1
        self.on_trial()

    # The micro-batch is an option of the program, a key of the file, or both.

    def _option(self) -> str | None:
        mapped = self._section["arg_mappings"] or {}
        return "--micro_batch" if self.options.is_train else mapped.get(_MICRO_BATCH)

    def _micro_batch(self) -> int | None:
        """None where the program or the section elasticity decides about it."""
        if _object(self.best_config.get("elasticity")).get("enabled"):
            return None
        given = self.options.value_of(self._option())
        if given is not None and given.isdecimal():
            return int(given)
        value = self.best_config.get(_MICRO_BATCH)
        if isinstance(value, int):
            return value
        return _TRAIN_MICRO_BATCH if self.options.is_train and value is None else None

    def _with_micro_batch(self, micro_batch: int) -> dict[str, Any]:
        values = copy.deepcopy(self.best_config)
        if values.get(_MICRO_BATCH) != "auto":
            values[_MICRO_BATCH] = micro_batch
        if isinstance(values.get("train_batch_size"), int):
            values.pop("gradient_accumulation_steps", None)  # follows from the other two
        return values

    def _smaller(self) -> Iterator[tuple[str, dict[str, Any], int | None]]:
        """Where the given micro-batch does not train: halves of it."""
        size = self._micro_batch() or 0
        while (
            self.best is None and size // 2 >= self._section["min_train_micro_batch_size_per_gpu"]
        ):
            size //= 2
            yield f"micro-batch {size}", self._with_micro_batch(size), size

    def _larger(self) -> Iterator[tuple[str, dict[str, Any], int | None]]:
        """Doubles, as long as that helps."""
        for _ in range(self._section["num_tuning_micro_batch_sizes"]):
            best = self.best
            if best is None or best.micro_batch is None:
                return
            size = 2 * best.micro_batch
            if not self._may_have(size):
                return
            yield f"micro-batch {size}", self._with_micro_batch(size), size
            if self.best is best:
                return

    def _may_have(self, size: int) -> bool:
        limit = self._section["max_train_batch_size"]
        accumulation = self.best_config.get("gradient_accumulation_steps")
        batch = size * (accumulation if isinstance(accumulation, int) else 1) * self._world_size()
        fixed = self.best_config.get("train_batch_size")
        if isinstance(fixed, int):
            return fixed % (size * self._world_size()) == 0
        return size <= self._section["max_train_micro_batch_size_per_gpu"] and (
            limit is None or batch <= limit
        )

    def _stages(self) -> Iterator[tuple[str, dict[str, Any], int | None]]:
        """Other stages that fit and, where none does without it, offloading."""
        fitting = [row for row in self.planned() if row["fits"]]
        kept = [row for row in fitting if row["offload_optimizer"] == "none"]
        memory = [row for row in fitting if row["offload_optimizer"] == "cpu"]
        micro_batch = self.best.micro_batch if self.best else self._micro_batch()
        for row in kept or memory[:_OFFLOADED]:
            values = copy.deepcopy(self.best_config)
            zero = values["zero_optimization"] = _object(values.get("zero_optimization"))
            if zero.get("stage", 0) == row["stage"] and row["setting"] == f"stage {row['stage']}":
                continue
            zero["stage"] = row["stage"]
            for key, least in _LEAST_STAGE.items():
                if row["stage"] < least:
                    zero.pop(key, None)
            for block in ("offload_optimizer", "offload_param"):
                zero.pop(block, None)
                if row[block] != "none":
                    zero[block] = {"device": row[block]}
            if row["offload_optimizer"] != "none":
                zero["offload_optimizer"]["ratio"] = row["ratio"]
            yield row["setting"], values, micro_batch

    def _communication(self) -> Iterator[tuple[str, dict[str, Any], int | None]]:
        """Overlap and buckets."""
        if self.best is None or self._world_size() == 1:
            return
        zero = _object(self.best_config.get("zero_optimization"))
        changes: list[tuple[str, dict[str, Any]]] = [
            ("without overlap", {"overlap_comm": False}),
            ("with overlap", {"overlap_comm": True}),
        ]
        if self.best.parameters:
            numel = max(1, self.best.parameters // _BUCKETS)
            changes.append((f"buckets of {numel}", {"reduce_bucket_size": numel}))
        for name, change in changes:
            if all(zero.get(key) == value for key, value in change.items()):
                continue
            values = copy.deepcopy(self.best_config)
            values["zero_optimization"] = _object(values.get("zero_optimization")) | change
            yield name, values, self.best.micro_batch

    def _world_size(self) -> int:
        known = next((trial.world_size for trial in self.trials if trial.world_size), None)
        asked = re.search(r"--num_(?:gpus|accelerators)[= ](\d+)", " ".join(self.options.launcher))
        return known or (int(asked[1]) if asked else 1)

    def planned(self) -> list[dict[str, Any]]:
        """The rows of `zerorun plan`, the fastest first; of all stages where no model is known."""
        model = self.options.model or self._model()
        if model is None:
            rows = [
                {"setting": f"stage {stage}", "stage": stage, "offload_optimizer": "none"}
                for stage in (1, 0, 2, 3)
            ]
            return [row | {"offload_param": "none", "ratio": 1.0, "fits": True} for row in rows]
        command = [self.options.launcher[0], "plan", "--json", "--model", model]
        command += ["--world_size", str(self._world_size())]
        for name, size in self.options.limits.items():
            command += [f"--{name}", size]
        if "gpu_memory" not in self.options.limits:
            command.append("--cpu")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ChildProcessError(f"{' '.join(command)}: {done.stderr.strip()}")
        return json.loads(done.stdout)["settings"]

    def _model(self) -> str | None:
        if self.options.is_train:
            return self.options.value_of("--model") or "nano"
        known = next((trial.parameters for trial in self.trials if trial.parameters), None)
        return None if known is None else str(known)


def _object(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


# --- one short run of a program with a configuration ---

_POLL_S = 0.1
_PATIENCE_S = 15.0  # for a job that is told to end
_RATES = ("tokens_per_s", "samples_per_s")
_OFF = ("tensorboard", "csv_monitor", "wandb", "comet", "flops_profiler")


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
