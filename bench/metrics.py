#!/usr/bin/env python3
"""What measuring a step costs, as a part of it.

    zerorun --num_gpus 2 --no_local_rank bench/metrics.py [--rounds 5]

A model of four layers of 512 x 512, AdamW, stage 2, ranks of one thread, with a metrics file and a
listener. Two steps differ by more than measuring takes, so it is timed by itself: everything that
the engine and its listeners do for it in a step, 200 times. Both are processor time, which a busy
machine does not change; the least times of all rounds count.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "build" / "release" / "python"))
import torch
import zerorun
from timing import least_ms
from torch import nn

WIDTH, LAYERS, SAMPLES = 512, 4, 64
WARMUP, STEPS, CALLS = 3, 10, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    x = torch.randn(SAMPLES, WIDTH)
    with tempfile.TemporaryDirectory() as folder:
        config = {
            "train_micro_batch_size_per_gpu": SAMPLES,
            "zero_optimization": {"stage": 2},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "zerorun": {"metrics": str(Path(folder) / "m.jsonl")},
        }
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        engine, *_ = zerorun.initialize(model, config=config)
        engine.add_listener(lambda metrics: metrics["loss"])

        def step() -> None:
            engine.backward(engine(x).square().mean())
            engine.step()

        loss, meter = torch.ones(()), engine._meter

        def measure() -> None:
            for _ in range(CALLS):
                meter.work.saw_inputs((x,), {})
                with meter.forward, meter.backward, meter.step:
                    meter.saw_loss(loss)
                meter.finish_micro_step(SAMPLES, 1)
                meter.finish(engine._last_step, 1, 0)

        steps, costs = [], []
        for _ in range(rounds):
            steps.append(least_ms(step, WARMUP, STEPS, time.process_time))
            costs.append(least_ms(measure, 1, 3, time.process_time) / CALLS)
        engine.destroy()
    if os.environ.get("RANK", "0") == "0":
        cost, whole = min(costs), min(steps)
        print(f"step {whole:.2f} ms, measuring {1e3 * cost:.0f} us: {cost / whole:.2%}")


if __name__ == "__main__":
    main()
