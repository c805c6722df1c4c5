"""StepMeter: measures an engine's steps and tells its listeners. Stopwatch: times a part of one."""

import functools
import math
import os
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.metrics.work import StepWork
from zerorun.program_warning import logger

Metrics = dict[str, Any]  # of one step; docs/metrics.md has the names
Listener = Callable[[Metrics], Any]

Span = tuple[str, float, float]  # what, begin and end in seconds of time.perf_counter()
COMPUTE, DATA, SAVE = 0, 1, 3  # StepPart: what a rank does with its time
Part = tuple[Callable[[int], int], int, int | None]


class StepMeter:
    """The figures of an engine's steps.

    The engine runs its parts within `forward`, `backward` and `step`, and calls :meth:`finish`
    after each optimizer step. What is asked for now and then (memory) is looked up when
    somebody asks, or for the listeners.
    """

    def __init__(
        self, core: _C.Engine, model: nn.Module, world_size: int, device: torch.device
    ) -> None:
        on_gpu = device.type == "cuda"
        self.times = EngineTimes(_C.EngineFigures(core))
        enter = self.figures.enter
        # A program may wait for a GPU wherever it asks for a loss: only the loader is known there.
        between = COMPUTE if on_gpu else DATA
        self.forward = Stopwatch("forward", on_gpu, (enter, COMPUTE, COMPUTE))
        self.backward = Stopwatch("backward", on_gpu, (enter, COMPUTE, between))
        self.step = Stopwatch("step", False, (enter, COMPUTE, between))
        self.data = Stopwatch("data", False, (enter, DATA, None))
        self.checkpoint = Stopwatch("checkpoint", False, (enter, SAVE, None))
        self.work = StepWork(model, world_size)
        self.listeners: list[Listener] = []
        self._core = core
        self._device = device
        self._losses: list[torch.Tensor] = []
        self._samples = 0  # of the batch
        self._all_samples = 0
        self._ended = time.perf_counter()
        self._last: Metrics | None = None

    def add_listener(self, listener: Listener) -> None:
        """Calls it with the figures of every step from now on."""
        self.times.watch()
        self.listeners.append(listener)

    @property
    def figures(self) -> _C.EngineFigures:
        return self.times.figures

    def saw_loss(self, loss: torch.Tensor) -> None:
        """The loss of a micro-step; from a GPU it is on its way when this returns."""
        if loss.is_cuda and captures():
            return
        self._losses.append(loss.detach().to("cpu", non_blocking=True, copy=True))

    def losses(self) -> list[float]:
        """Of this batch, for a report of what went wrong. Waits for a GPU."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return [float(loss) for loss in self._losses]

    def drop_batch(self) -> None:
        """Forgets the losses of a batch that is given up, and its tokens if it had a backward: else
        its forward may be on its way."""
        if self._losses:
            self._losses.clear()
            self.work.tokens = 0

    def finish_micro_step(self, samples: int, micro_steps: int) -> None:
        """`samples` of all ranks in it; `micro_steps` since the training began, with this one."""
        if (
            self._all_samples == self._samples == 0
        ):  # a checkpoint may have brought more than this one
            self._all_samples = samples * (micro_steps - 1)
        self._samples += samples
        self.work.micro_steps += 1

    def finish(self, result: _C.StepResult, step: int, skipped_steps: int) -> None:
        """After an optimizer step: the listeners learn of it."""
        now = time.perf_counter()
        step_s, self._ended = now - self._ended, now
        arrived = self.backward.has_happened()
        losses, self._losses = self._losses, []
        mean = sum(map(float, losses)) / len(losses) if losses and arrived else math.nan
        samples, self._samples = self._samples, 0
        lrs = [float(f"{group.lr:.7g}") for group in self._core.groups()]  # which are fp32
        self._all_samples += samples
        norm = result.grad_norm if result.applied else None
        metrics: Metrics = {
            "step": step,
            "samples": self._all_samples,
            "time_s": time.time(),
            "loss": mean if arrived and math.isfinite(mean) else None,
            "lr": lrs[0] if lrs else None,
            "lrs": lrs,
            "grad_norm": norm,
            "clip_factor": result.clip_factor,
            "clipped_grad_norm": None if norm is None else norm * result.clip_factor,
            "loss_scale": result.loss_scale,
            "skipped": not result.applied,
            "skipped_steps": skipped_steps,
            "step_ms": 1e3 * step_s,
            "forward_ms": self.forward.take_ms(),
            "backward_ms": self.backward.take_ms(),
            "call_ms": self.step.take_ms(),
            "data_ms": self.data.take_ms(),
            "checkpoint_ms": self.checkpoint.take_ms(),
            "samples_per_s": samples / step_s,
        }
        metrics |= self.times.take()
        parts = [metrics[name] or 0.0 for name in ("forward_ms", "backward_ms", "call_ms")]
        metrics["other_ms"] = max(0.0, metrics["step_ms"] - sum(parts))
        metrics |= self.work.take(step_s)
        self._last = metrics
        if self.listeners:
            self._add_state(metrics)
            self._tell(metrics)

    def metrics(self) -> Metrics | None:
        """Figures of the last step; None before the first one."""
        if self._last is not None and "memory" not in self._last and not self._core.closed:
            self._add_state(self._last)
        return self._last

    def _add_state(self, metrics: Metrics) -> None:
        """Bytes that the rank holds now."""
        held = self.figures.memory()
        metrics["memory"] = {name: now for name, (now, _) in held.items()}
        metrics["memory_peak"] = {name: most for name, (_, most) in held.items()}
        metrics["model_state_bytes"] = self._core.model_state_bytes
        metrics["rss_bytes"] = rss_bytes()
        metrics["peak_rss_bytes"] = max(metrics["rss_bytes"], peak_rss_bytes())
        if self._device.type == "cuda":
            metrics["gpu_bytes"] = torch.cuda.memory_allocated(self._device)

    def _tell(self, metrics: Metrics) -> None:
        """A listener that fails is one less, with a warning: reports do not end a training."""
        for listener in list(self.listeners):
            try:
                listener(metrics)
            except Exception as error:
                self.listeners.remove(listener)
                logger.warning(
                    "step %d: the listener %s failed and gets no more steps: %s: %s",
                    metrics["step"],
                    getattr(listener, "__qualname__", type(listener).__name__),
                    type(error).__name__,
                    error,
                )


class Stopwatch:
    """Adds up the times of `with` blocks until :meth:`take_ms`; blocks within it count once.

    On a GPU the time is that of its current stream, between two events. `take_ms` is None when
    those have not happened yet, which it does not wait for. `part`: (`EngineFigures.enter`, the
    part of a step that the blocks are, the one that follows; None: as before).
    """

    def __init__(self, name: str, on_gpu: bool, part: Part | None = None) -> None:
        self.name = name
        self._part, self._next = part, COMPUTE
        self.spans: list[Span] | None = None  # where to write them down, if anybody asked
        self._on_gpu = on_gpu
        self._depth = 0
        self._begin = 0.0
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._pair: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        if self._part is not None:
            enter, inside, after = self._part
            before = enter(inside)
            self._next = before if after is None else after
        self._pair = (_event(), _event()) if self._on_gpu and not captures() else None
        if self._pair is not None:
            self._pair[0].record()
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        end = time.perf_counter()
        self._seconds += end - self._begin
        if self._part is not None:
            self._part[0](self._next)
        if self._pair is not None:
            self._pair[1].record()
            self._events.append(self._pair)
        if self.spans is not None:
            self.spans.append((self.name, self._begin, end))

    def has_happened(self) -> bool:
        """True if the device is past the last block."""
        return all(end.query() for _, end in self._events)

    def take_ms(self) -> float | None:
        """Milliseconds since the last call; None when they are not known, or there was no block."""
        seconds, self._seconds = self._seconds, 0.0
        events, self._events = self._events, []
        if not self._on_gpu:
            return 1e3 * seconds if seconds > 0.0 else None
        if not events or not all(end.query() for _, end in events):
            return None
        return sum(begin.elapsed_time(end) for begin, end in events)


def captures() -> bool:
    """True if what a GPU's stream gets now is for a CUDA graph, which runs at other times."""
    return torch.cuda.is_current_stream_capturing()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def rss_bytes() -> int:
    """Resident memory, shared memory included."""
    return int(os.pread(_statm(os.getpid()), 128, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")


@functools.cache
def _statm(_pid: int) -> int:
    """The file of this process; after a fork it is another one's. Opening it takes ten reads."""
    return os.open("/proc/self/statm", os.O_RDONLY)


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


_MS = 1e3


class EngineTimes:
    """Times and collectives of an engine since the last look. What ran beside the program is known
    from :meth:`watch` on."""

    def __init__(self, figures: _C.EngineFigures) -> None:
        self.figures = figures
        self._watches = False
        self._counted = figures.collectives()  # up to the last look

    def watch(self) -> None:
        """Observes the engine's streams from here on."""
        if not self._watches:
            self._watches = True
            self.figures.measure_work()

    def forget(self) -> None:
        """Times until now belong to no step."""
        self.figures.take_timings()
        self.figures.take_work()
        self._counted = self.figures.collectives()

    def take(self) -> dict[str, Any]:
        reduce_s, gather_s, optimizer_s = self.figures.take_timings()
        found: dict[str, Any] = {
            "comm_ms": _MS * (reduce_s + gather_s),
            "reduce_ms": _MS * reduce_s,
            "gather_ms": _MS * gather_s,
            "optimizer_ms": _MS * optimizer_s,
            "collectives": self._take_collectives(),
        }
        found |= self.figures.stragglers()
        for name, (exposed_s, hidden_s) in self.figures.take_work().items():
            found[f"{name}_hidden_ms"] = _MS * hidden_s
            if name == "offload":
                found["offload_ms"] = _MS * exposed_s
        return found

    def _take_collectives(self) -> dict[str, list[float | None]]:
        before, self._counted = self._counted, self.figures.collectives()
        counts: dict[str, list[float | None]] = {}
        for name, (calls, nbytes, seconds) in self._counted.items():
            earlier_calls, earlier_nbytes, earlier_s = before.get(name, (0, 0, 0.0))
            if calls > earlier_calls:
                took = _MS * (seconds - earlier_s)
                ms = None if math.isnan(took) or not self._watches else took
                counts[name] = [calls - earlier_calls, nbytes - earlier_nbytes, ms]
        return counts
