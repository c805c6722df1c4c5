"""Findings: facts that a reader of the figures should know, and what to do about them."""

from collections.abc import Iterator
from typing import Any

from zerorun.report.reader import TIMES, Run

_WARM_UP = 2  # points at the beginning that are slower than the rest
_SLOWER = 0.10
_EXPOSED = 0.15
_WAITS = 0.15
_FALLS = 3


def findings(run: Run) -> list[str]:
    """Sentences about a run; empty where nothing is odd."""
    found = [
        *(_straggler(run) if run.straggler else _slow_ranks(run)),
        *_exposed(run),
        *_skipped(run),
        *_waiting(run),
        *_missing_ranks(run),
    ]
    if run.bad_lines:
        lines = "line is" if run.bad_lines == 1 else "lines are"
        found.append(
            f"{run.bad_lines} {lines} not a JSON object with a step: the file was cut, or "
            "something else wrote into it."
        )
    return found


def _mean(run: Run, rank: int, name: str) -> float:
    return run.ranks[rank].columns.mean(name, _WARM_UP) or 0.0


def _straggler(run: Run) -> Iterator[str]:
    yield (
        f"R{(run.straggler or '')[1:]}, when the ranks' steps last showed a straggler, as they did "
        f"in {run.straggler_steps} of {run.first.columns.steps} steps: docs/slow.md says what to "
        "look at."
    )


def _slow_ranks(run: Run) -> Iterator[str]:
    """Ranks end their steps together, so a slow one shows in the time that it computes itself."""
    own = {
        rank: _mean(run, rank, "fwd_bwd_ms")  # which has no communication in it
        or _mean(run, rank, "forward_ms")
        + _mean(run, rank, "backward_ms")
        - _mean(run, rank, "comm_ms")
        for rank in run.ranks
    }
    if len(own) < 2 or min(own.values()) <= 0.0:
        return
    least = min(own.values())
    for rank, value in sorted(own.items()):
        if value > least * (1.0 + _SLOWER):
            yield (
                f"Rank {rank} computes {100 * (value / least - 1):.0f} % longer in forward and "
                "backward than the fastest rank, and all wait for it: look at its cores, its GPU's "
                "clock and the lengths of its samples."
            )


def _exposed(run: Run) -> Iterator[str]:
    step = _mean(run, min(run.ranks), "step_ms")
    overlap = "" if run.setting("/zero_optimization/overlap_comm") else "overlap_comm, or "
    advice = {
        "reduce_ms": f"Reductions: set {overlap}a smaller reduce_bucket_size so that the "
        "first ones begin earlier; more accumulation steps reduce less often per sample.",
        "gather_ms": "Gathers: raise stage3_prefetch_bucket_size, or keep more parameters with "
        "stage3_param_persistence_threshold; stage 2 gathers once per step if it fits.",
        "offload_ms": "Offloading: a smaller ratio keeps more of the states on the device; more "
        "accumulation steps update less often per sample.",
    }
    for name, what in advice.items():
        part = _mean(run, min(run.ranks), name)
        if step > 0.0 and part / step > _EXPOSED:
            topic, _, rest = what.partition(": ")
            be = "is" if topic == "Offloading" else "are"
            yield f"{topic} {be} waited for in {100 * part / step:.0f} % of a step: {rest}"


def _skipped(run: Run) -> Iterator[str]:
    columns = run.first.columns
    if not columns.skipped:
        return
    scales, falls = columns.table().get("loss_scale", []), columns.scale_falls
    counts = f"{columns.skipped_count} of {columns.steps}"
    text = f"{counts} steps were skipped, as their gradient was not finite"
    if falls >= _FALLS:
        text += f"; the loss scale fell {falls} times. bf16 needs no loss scale"
    elif set(filter(None, scales)) <= {1.0}:
        text += ": training is not in fp16, so look at the data and the learning rate"
    yield text + "."


def _waiting(run: Run) -> Iterator[str]:
    step, other = (_mean(run, min(run.ranks), name) for name in ("step_ms", "other_ms"))
    if step > 0.0 and other / step > _WAITS:
        yield (
            f"{100 * other / step:.0f} % of a step is spent outside of the engine: loading data, "
            "logging, evaluation. More workers of the data loader, or fewer calls of .item(), help."
        )


def _missing_ranks(run: Run) -> Iterator[str]:
    if run.world_size and len(run.ranks) < run.world_size:
        yield (
            f"There are figures of {len(run.ranks)} of {run.world_size} ranks: the others' files "
            "lie on their hosts, or were not copied along."
        )


def breakdown(run: Run) -> dict[str, Any]:
    """Mean milliseconds of a step's parts, on the first rank: names for a reader."""
    columns = run.first.columns
    mean = {name: columns.mean(name, _WARM_UP) for name in TIMES}
    return {name: round(value, 3) for name, value in mean.items() if value is not None}
