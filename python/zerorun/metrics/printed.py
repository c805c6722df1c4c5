"""What is printed of steps: lines of `steps_per_print` and `wall_clock_breakdown`, in DeepSpeed's
form, and the table of collectives (`comms_logger`)."""

import datetime
import itertools
import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from zerorun import _C
from zerorun.agreement import reduced
from zerorun.process_state import STATE

# DeepSpeed's names of the parts of a step.
_PARTS = {
    "fwd": "forward_ms",
    "bwd": "backward_ms",
    "bwd_inner": None,
    "bwd_allreduce": "reduce_ms",
    "step": "call_ms",
}


def _number(value: float | None, digits: int = 2) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"


class ProgressLines:
    """A listener that prints a line every `steps` steps, and with `breakdown` one about the times
    of each step. `momenta` tells the groups' momenta now."""

    def __init__(
        self, steps: int | None, breakdown: bool, momenta: Callable[[], list[Any]]
    ) -> None:
        self._steps, self._breakdown, self._momenta = steps, breakdown, momenta

    def __call__(self, metrics: dict[str, Any]) -> None:
        if self._steps is not None and metrics["step"] % self._steps == 0:
            announce(self._progress(metrics))
        if self._breakdown:
            announce(self._times(metrics))

    def _progress(self, metrics: dict[str, Any]) -> str:
        line = (
            f"step={metrics['step']}, skipped={metrics['skipped_steps']}, lr={metrics['lrs']}, "
            f"mom={self._momenta()}"
        )
        if metrics["loss"] is not None:
            line += f", loss={metrics['loss']:.6g}"
        line += f", samples/s={metrics['samples_per_s']:.1f}"
        if metrics["skipped"]:
            line += f", skipped: the gradient is not finite at loss scale {metrics['loss_scale']:g}"
        return line

    @staticmethod
    def _times(metrics: dict[str, Any]) -> str:
        backward, reduce = metrics["backward_ms"], metrics["reduce_ms"]
        inner = None if backward is None else max(0.0, backward - reduce)
        times = {name: inner if key is None else metrics[key] for name, key in _PARTS.items()}
        parts = " | ".join(f"{name}: {_number(value)}" for name, value in times.items())
        return (
            f"time (ms) | {parts} | gather: {_number(metrics['gather_ms'])} | "
            f"optimizer: {_number(metrics['optimizer_ms'])} | "
            f"other: {_number(metrics['other_ms'])}"
        )


def announce(line: str) -> None:
    """Through the logger `zerorun` where somebody listens to it, else on the error stream."""
    logger = logging.getLogger("zerorun")
    if logger.hasHandlers() and logger.isEnabledFor(logging.INFO):
        logger.info("%s", line)
    else:
        print(f"[zerorun] {line}", file=sys.stderr, flush=True)


# --- `comms_logger`: how often which collective ran, how large and how fast ---

_TRIMMED = 0.1  # of the latencies on either side, as DeepSpeed's averages
_MOST = 10_000  # latencies that are kept of an operation and size


@dataclass
class Timed:
    """Collectives of one operation and size, in bytes of the full tensor."""

    count: int = 0
    total_ms: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)  # the first ones; none on a GPU

    def add(self, latency_ms: float) -> None:
        self.count += 1
        if math.isnan(latency_ms):  # on a GPU, whose streams the host does not time
            return
        self.total_ms += latency_ms
        if len(self.latencies_ms) < _MOST:
            self.latencies_ms.append(latency_ms)


def _trimmed_mean(values: Sequence[float]) -> float:
    kept, cut = sorted(values), round(len(values) * _TRIMMED)
    kept = kept[cut : max(cut + 1, len(kept) - cut)]
    return sum(kept) / len(kept) if kept else 0.0


def bandwidths_gbps(op: str, nbytes: int, latency_ms: float, ranks: int) -> tuple[float, float]:
    """(of the algorithm, of the bus), as NCCL's tests define them."""
    if latency_ms <= 0.0:
        return 0.0, 0.0
    rate = 8.0 * nbytes / latency_ms / 1e6
    if op == "all_reduce":
        return 2.0 * rate, rate * 2.0 * (ranks - 1) / ranks
    if op in {"all_gather", "reduce_scatter"}:
        return rate, rate * (ranks - 1) / ranks
    return rate, rate


def size_text(nbytes: int) -> str:
    """With its unit."""
    size, units = float(nbytes), ("B", "KB", "MB", "GB", "TB")
    for unit in units:
        if size < 1024 or unit == units[-1]:
            return f"{round(size, 2)} {unit}"
        size /= 1024
    return ""


_numbers = itertools.count()


class CollectiveTable:
    """An engine's collectives since it was made; a listener of its steps.

    `ops`: only these operations; None: all. `verbose`: a line for each collective, with `debug`
    with what it was for.
    """

    def __init__(
        self,
        figures: _C.EngineFigures,
        communicator: _C.Communicator,
        ops: Sequence[str] | None = None,
        verbose: bool = False,
        debug: bool = False,
    ) -> None:
        self.timed: dict[str, dict[int, Timed]] = {}
        self.dropped = 0
        self._figures, self._communicator = figures, communicator
        self._ops, self._verbose, self._debug = ops, verbose, debug
        figures.record_collectives()
        STATE.tables[next(_numbers)] = self

    def __call__(self, _metrics: dict[str, Any]) -> None:
        self.take()

    def take(self) -> list[tuple[str, str, int, float, float]]:
        """Adds what ran since the last call, and returns it."""
        rows, dropped = self._figures.take_collectives()
        self.dropped += dropped
        for op, label, nbytes, begin, end in rows:
            if self._ops is not None and op not in self._ops:
                continue
            latency = 1e3 * (end - begin)
            self.timed.setdefault(op, {}).setdefault(nbytes, Timed()).add(latency)
            if self._verbose and self._communicator.rank == 0:
                rate, bus = bandwidths_gbps(op, nbytes, latency, self._communicator.world_size)
                name = f"{op} of {label}" if self._debug else op
                announce(
                    f"comm op: {name} | time (ms): {latency:.2f} | msg size: {size_text(nbytes)} | "
                    f"algbw (Gbps): {rate:.2f} | busbw (Gbps): {bus:.2f}"
                )
        return rows

    def summary(self) -> dict[str, dict[int, dict[str, Any]]]:
        """By operation and size in bytes: count, latencies in ms, bandwidths in Gbit/s."""
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for op, sizes in self.timed.items():
            for nbytes, timed in sorted(sizes.items()):
                mean = _trimmed_mean(timed.latencies_ms)
                rate, bus = bandwidths_gbps(op, nbytes, mean, self._communicator.world_size)
                found.setdefault(op, {})[nbytes] = {
                    "count": timed.count,
                    "total_latency_ms": timed.total_ms,
                    "avg_latency_ms": mean,
                    "tput_avg_gbps": rate,
                    "busbw_avg_gbps": bus,
                    "msg_size_bytes": nbytes,
                    "msg_size_str": size_text(nbytes),
                }
        return found

    def stragglers(self) -> dict[str, dict[int, dict[str, Any]]]:
        """The part of the latencies that was waiting for the last rank to come: what a rank took
        longer than the one that took least. Collective."""
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for op, sizes in sorted(self.timed.items()):
            for nbytes, timed in sorted(sizes.items()):
                own = torch.tensor(timed.latencies_ms, dtype=torch.float32, device="cpu")
                own = own[: reduced(own.numel(), self._communicator, "min", "log_summary: length")]
                least = own.clone()
                if least.numel() > 0:
                    self._communicator.all_reduce(least, "min", "log_summary: latencies")
                waited = own - least
                found.setdefault(op, {})[nbytes] = {
                    "count": timed.count,
                    "total_comm_lat_ms": least.sum().item(),
                    "total_straggler_ms": waited.sum().item(),
                    "avg_comm_lat_ms": _trimmed_mean(least.tolist()),
                    "avg_straggler_ms": _trimmed_mean(waited.tolist()),
                    "msg_size_bytes": nbytes,
                    "msg_size_str": size_text(nbytes),
                }
        return found


_COLUMNS = {
    "Message Size": "msg_size_str",
    "Count": "count",
    "Total Latency(ms)": "total_latency_ms",
    "Avg Latency(ms)": "avg_latency_ms",
    "tput_avg (Gbps)": "tput_avg_gbps",
    "busbw_avg (Gbps)": "busbw_avg_gbps",
}
_STRAGGLER_COLUMNS = {
    "Message Size": "msg_size_str",
    "Count": "count",
    "Total comm lat(ms)": "total_comm_lat_ms",
    "Total straggler(ms)": "total_straggler_ms",
    "Avg comm lat(ms)": "avg_comm_lat_ms",
    "Avg straggler(ms)": "avg_straggler_ms",
}


def _table_text(found: dict[str, dict[int, dict[str, Any]]], columns: dict[str, str]) -> str:
    lines = ["".join(f"{name:<20}" for name in ("Comm. Op", *columns))]
    for op, sizes in found.items():
        lines.append(op)
        for row in sizes.values():
            cells = (
                f"{value:<20.2f}" if isinstance(value := row[key], float) else f"{value!s:<20}"
                for key in columns.values()
            )
            lines.append(" " * 20 + "".join(cells))
    return "\n".join(line.rstrip() for line in lines)


def log_summary(show_straggler: bool = False, return_dict: bool = False) -> dict[str, Any] | None:
    """Prints, on rank 0, what collectives the engines with `comms_logger` made.

    `show_straggler`: how long ranks waited for each other too; then every rank has to call it.
    `return_dict`: the same as a dictionary. Latencies are this rank's, with the waiting for others;
    on GPUs, whose streams the host does not time, they are 0. ConfigError without `comms_logger`.
    """
    if not STATE.tables:
        raise _C.ConfigError(
            'log_summary: no engine records its collectives; set {"comms_logger": {"enabled": '
            "true}} in the configuration"
        )
    result: dict[str, Any] = {"summary": {}, "straggler_analysis": None}
    communicator = None
    for table in list(STATE.tables.values()):
        communicator = table._communicator
        table.take()
        summary = table.summary()
        result["summary"] |= summary
        text = _table_text(summary, _COLUMNS)
        if show_straggler:
            stragglers = table.stragglers()
            result["straggler_analysis"] = (result["straggler_analysis"] or {}) | stragglers
            text += "\nBreakdown with straggler effect\n"
            text += _table_text(stragglers, _STRAGGLER_COLUMNS)
        if table.dropped:
            text += f"\n{table.dropped} more collectives were not recorded: too many in a step"
        if communicator.rank == 0:
            print(text, flush=True)
    if not return_dict or communicator is None:
        return None
    result["metadata"] = {
        "world_size": communicator.world_size,
        "rank": communicator.rank,
        "timestamp": datetime.datetime.now().isoformat(),
    }
    return result
