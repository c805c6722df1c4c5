"""Metrics files for tests of their readers."""

from pathlib import Path

from zerorun.metrics import MetricsFile

RUN = {
    "config": [
        ["/zero_optimization/stage", 2, False],
        ["/bf16/enabled", True, False],
        ["/gradient_clipping", 1.0, True],
    ],
    "environment": {"host": "</script><b>&"},
    "parameters": 1000,
    "plan": {"parameters": 2000, "optimizer": 6000},
    "limits": {"reduce_scatter": 5e9},
}


def line(step: int, **figures: object) -> dict[str, object]:
    return {
        "step": step,
        "samples": 8 * step,
        "loss": 4.0 / step,
        "lr": 1e-3,
        "grad_norm": 1.0,
        "loss_scale": 1.0,
        "skipped": False,
        "step_ms": 100.0,
        "forward_ms": 30.0,
        "backward_ms": 60.0,
        "comm_ms": 5.0,
        "reduce_ms": 5.0,
        "gather_ms": 0.0,
        "other_ms": 1.0,
        "tokens_per_s": 1000.0,
        "collectives": {"reduce_scatter": [2, 4000, 0.5]},
        "memory_peak": {"parameters": 2000},
        "model_state_bytes": 9000,
    } | figures


def write(path: Path, rank: int = 0, steps: int = 10, **figures: object) -> Path:
    file = MetricsFile(path, rank, 2, RUN)
    for step in range(1, steps + 1):
        file(line(step, **figures))
    return path
