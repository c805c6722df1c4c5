"""Floating point operations of steps, against the shapes of the model."""

from __future__ import annotations

import math
from pathlib import Path

import torch
import zerorun
from zerorun.metrics.work import flops_per_token

from cases.models import BATCH, RANK, WORLD_SIZE, adamw, config, make, train

STEPS = 3


def start(stage: int, **keys: object) -> zerorun.ZeroEngine:
    model = make()
    engine, *_ = zerorun.initialize(model, adamw(model), config=config(stage, **keys))
    return engine


def case_flops_of_a_step_are_those_of_its_tokens(folder: Path) -> None:
    own = {"metrics": str(folder / "m.jsonl"), "comm_timeout": 30}
    for stage in (1, 3):
        engine = start(stage, zerorun=own)
        shapes = [
            module.weight
            for module in engine.module.modules()
            if isinstance(module, torch.nn.Linear)
        ]
        weights = sum(getattr(weight, "ds_numel", weight.numel()) for weight in shapes)
        train(engine, 1)
        metrics = engine.metrics()
        assert metrics["flops"] == 6 * weights * BATCH * 8
        seconds, peak = metrics["step_ms"] / 1e3, engine._meter.work.peak
        assert math.isclose(metrics["mfu"], metrics["flops"] / seconds / peak, rel_tol=1e-6)
        engine.destroy()
    frozen = torch.nn.Linear(4, 8).requires_grad_(False)
    tied = torch.nn.Linear(8, 16, bias=False)
    table = torch.nn.Embedding(16, 8)
    table.weight = tied.weight
    assert flops_per_token(torch.nn.Sequential(frozen, table, tied)) == 4 * 32 + 6 * 128
    engine = start(1, flops_profiler={"enabled": True, "output_file": str(folder / "flops.txt")})
    train(engine, STEPS)
    counted = engine._meter.work.counted
    if RANK == 0:
        assert engine.metrics()["flops"] == counted * WORLD_SIZE
        assert counted / 3 == 2 * weights * BATCH // WORLD_SIZE * 8
    engine.destroy()
