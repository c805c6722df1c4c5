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
NAMES = ("step_ms", "forward_ms", "backward_ms", "comm_ms", "reduce_ms", "gather_ms", "other_ms")
TIMES = dict(zip(NAMES, (100.0, 30.0, 60.0, 5.0, 5.0, 0.0, 1.0), strict=True))
STEP = {"lr": 1e-3, "grad_norm": 1.0, "loss_scale": 1.0, "skipped": False, "tokens_per_s": 1000.0}
BYTES = {"memory_peak": {"parameters": 2000}, "model_state_bytes": 9000}
BYTES["collectives"] = {"reduce_scatter": [2, 4000, 0.5]}


def line(step: int, **figures: object) -> dict[str, object]:
    own = {"step": step, "samples": 8 * step, "loss": 4.0 / step}
    return own | STEP | TIMES | BYTES | figures


def write(path: Path, rank: int = 0, steps: int = 10, **figures: object) -> Path:
    file = MetricsFile(path, rank, 2, RUN)
    for step in range(1, steps + 1):
        file(line(step, **figures))
    return path
