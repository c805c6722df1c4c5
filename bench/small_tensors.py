#!/usr/bin/env python3
"""What 2,000 small tensors cost a step beyond one tensor of the same size.

    zerorun --num_gpus 2 --no_local_rank bench/small_tensors.py [--rounds 5]

1,000 linear layers of 64 x 64 in fp32 beside one parameter of as many elements, AdamW, clipped, two
ranks of one thread. The engine's cost is a step less forward and backward of the bare model; what
the many tensors add to it is shown as a part of their step. The least times of all rounds count.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "build" / "release" / "python"))
import torch
import zerorun
from timing import least_ms
from torch import nn

WIDTH, LAYERS = 64, 1000
WARMUP, STEPS = 3, 15


class Many(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + 0.1 * layer(x)
        return x.square().mean()


class One(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.randn(LAYERS * WIDTH * (WIDTH + 1)) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.flat[:WIDTH] * x).square().mean() + self.flat.mean()


def measure(kind: type[nn.Module], stage: int, x: torch.Tensor) -> tuple[float, float]:
    """Milliseconds of the bare model's forward and backward, and of an engine's step."""
    model = kind()

    def bare() -> None:
        model(x).backward()
        model.zero_grad()

    alone = least_ms(bare, WARMUP, STEPS)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    }
    engine, *_ = zerorun.initialize(model, config=config)

    def step() -> None:
        engine.backward(engine(x))
        engine.step()

    taken = least_ms(step, WARMUP, STEPS)
    engine.destroy()
    return alone, taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    x = torch.randn(WIDTH, WIDTH)
    for stage in (1, 2, 3):
        best = {}
        for _ in range(rounds):
            for kind in (Many, One):
                found = measure(kind, stage, x)
                best[kind] = tuple(map(min, found, best.get(kind, found)))
        (alone, step), (one_alone, one_step) = best[Many], best[One]
        extra = (step - alone) - (one_step - one_alone)
        if os.environ.get("RANK", "0") == "0":
            print(f"stage {stage}: step {step:.1f} ms, {extra / step:.1%} for being many tensors")


if __name__ == "__main__":
    main()
