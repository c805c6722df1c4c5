"""Timers of the host's clock that wait for the accelerator first."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from deepspeed.accelerator import get_accelerator
from deepspeed.utils.logging import logger, print_dist


def trim_mean(data: Sequence[float], trim_percent: float) -> float:
    """The mean without that part of the smallest and of the largest values."""
    if not 0.0 <= trim_percent <= 1.0:
        raise ValueError(f"trim_percent: got {trim_percent}, expected 0 to 1")
    kept, cut = sorted(data), int(trim_percent * len(data))
    kept = kept[cut : max(cut + 1, len(kept) - cut)]
    return sum(kept) / len(kept) if kept else 0.0


class _Timer:
    """One named interval, which may be measured several times."""

    def __init__(self, name: str) -> None:
        self.name_ = name
        self.started_ = False
        self.records: list[float] = []  # seconds
        self._begin = 0.0

    def start(self) -> None:
        if self.started_:
            raise AssertionError(f"timer {self.name_} has already been started")
        get_accelerator().synchronize()
        self._begin, self.started_ = time.perf_counter(), True

    def stop(self, reset: bool = False, record: bool = False) -> None:
        """Adds a measurement, whatever the arguments, as there."""
        if not self.started_:
            raise AssertionError(f"timer {self.name_} is not started")
        get_accelerator().synchronize()
        self.started_ = False
        self.records.append(time.perf_counter() - self._begin)

    def reset(self) -> None:
        self.started_ = False
        self.records.clear()

    def elapsed(self, reset: bool = True) -> float:
        """Milliseconds so far, of a running timer too."""
        running = self.started_
        if running:
            self.stop()
        total = sum(self.records) * 1000.0
        if reset:
            self.reset()
        if running:
            self.start()
        return total

    def mean(self) -> float:
        """Milliseconds of a measurement."""
        return trim_mean(self.records, 0.1) * 1000.0


class SynchronizedWallClockTimer:
    """Timers by name."""

    Timer = _Timer

    def __init__(self) -> None:
        self.timers: dict[str, _Timer] = {}

    def __call__(self, name: str) -> _Timer:
        return self.timers.setdefault(name, _Timer(name))

    def get_timers(self) -> dict[str, _Timer]:
        return self.timers

    def has_timer(self, name: str) -> bool:
        return name in self.timers

    @staticmethod
    def memory_usage() -> str:
        accelerator = get_accelerator()
        now, peak = accelerator.memory_allocated(), accelerator.max_memory_allocated()
        return f" | mem_allocated: {now / 2**30:.4f} GB | peak_mem_allocated: {peak / 2**30:.4f} GB"

    def log(
        self,
        names: Sequence[str],
        normalizer: float = 1.0,
        reset: bool = True,
        memory_breakdown: bool = False,
        ranks: Sequence[int] | None = None,
    ) -> None:
        times = [
            f"{name}: {self.timers[name].elapsed(reset) / normalizer:.2f}"
            for name in names
            if name in self.timers
        ]
        tail = self.memory_usage() if memory_breakdown else ""
        print_dist(f"time (ms) | {' | '.join(times)}{tail}", ranks or [0])

    def get_mean(
        self, names: Sequence[str], normalizer: float = 1.0, reset: bool = True
    ) -> dict[str, float]:
        found = {n: self.timers[n].mean() / normalizer for n in names if n in self.timers}
        for name in found if reset else ():
            self.timers[name].reset()
        return found


class ThroughputTimer:
    """Samples per second between start() and stop() around each micro-step."""

    def __init__(
        self,
        config: Any,
        batch_size: int | None,
        start_step: int = 2,
        steps_per_output: int | None = None,
        monitor_memory: bool = False,
        logging_fn: Callable[[str], Any] | None = None,
    ) -> None:
        if not isinstance(steps_per_output, int | None):
            raise ValueError(
                "ThroughputTimer: steps_per_output must be a positive integer or None for no "
                f"output, got {steps_per_output!r}"
            )
        if steps_per_output is not None and steps_per_output <= 0:
            raise ValueError(
                "ThroughputTimer: steps_per_output must be greater than 0, or None for no output, "
                f"got {steps_per_output}"
            )
        self.enabled = getattr(config, "enabled", True)
        self.batch_size = batch_size or 1
        self.start_step = start_step  # those before are not counted
        self.steps_per_output = steps_per_output
        self.logging = logging_fn or logger.info
        self.epoch_count = self.micro_step_count = self.global_step_count = 0
        self.total_elapsed_time = 0.0
        self.start_time = self.end_time = self.step_elapsed_time = 0.0
        self.initialized = self.started = False

    def update_epoch_count(self) -> None:
        self.epoch_count += 1
        self.micro_step_count = 0

    def start(self) -> None:
        if not self.enabled:
            return
        self.initialized = self.started = True
        if self.global_step_count >= self.start_step:
            self.start_time = time.perf_counter()

    def stop(self, global_step: bool = False, report_speed: bool = True) -> None:
        """`global_step`: the micro-step has ended a batch."""
        if not self.started:
            return
        self.started = False
        self.micro_step_count += 1
        self.global_step_count += global_step
        if self.start_time > 0:
            self.end_time = time.perf_counter()
            duration = self.end_time - self.start_time
            self.total_elapsed_time += duration
            self.step_elapsed_time = 0.0 if global_step else self.step_elapsed_time + duration
        every = self.steps_per_output
        if report_speed and global_step and every and self.global_step_count % every == 0:
            speed = f"{self.avg_samples_per_sec():.1f} samples/s"
            self.logging(f"epoch {self.epoch_count}, step {self.global_step_count}: {speed}")

    def avg_samples_per_sec(self) -> float:
        counted = self.global_step_count - self.start_step
        if counted <= 0 or self.total_elapsed_time == 0:
            return float("-inf")
        return self.batch_size * counted / self.total_elapsed_time
