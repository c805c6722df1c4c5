"""Three ways to give a stage 3 model's weights to another engine, compared in one run.

    zerorun --accelerator cpu --num_gpus 2 bench/weights.py [--layers 24] [--width 512] [--turns 5]

Prints the shortest time of each and how much memory it adds to that of rank 0.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "build" / "release" / "python"))
import torch
import zerorun
from torch import nn


def model_of(layers: int, width: int) -> nn.Module:
    def layer() -> nn.Module:
        names = ("query", "key", "value", "output", "gate", "up", "down", "norm")
        return nn.ModuleDict({name: nn.Linear(width, width, bias=False) for name in names})

    return nn.ModuleList(layer() for _ in range(layers))


def one_by_one(engine: zerorun.ZeroEngine) -> int:
    """As TRL and OpenRLHF do."""
    count = 0
    for parameter in engine.module.parameters():
        with zerorun.zero.GatheredParameters([parameter]):
            count += parameter.numel()
    return count


def iterated(engine: zerorun.ZeroEngine) -> int:
    return sum(value.numel() for _, value in engine.iter_full_parameters())


def streamed(engine: zerorun.ZeroEngine) -> int:
    return sum(
        tensor.shape.numel()
        for bucket in engine.stream_parameters(bucket_bytes=16 << 20)
        for tensor in bucket.tensors
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, value in (("layers", 24), ("width", 512), ("turns", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    model = model_of(options.layers, options.width)
    numel = sum(parameter.numel() for parameter in model.parameters())
    engine, *_ = zerorun.initialize(
        model,
        torch.optim.AdamW(model.parameters()),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3},
            "zerorun": {"share_parameters": False},
        },
    )
    ways: tuple[Callable[[zerorun.ZeroEngine], int], ...] = (streamed, iterated, one_by_one)
    for way in ways:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        times = []
        for _ in range(options.turns):
            engine.communicator.barrier("before")
            begin = time.perf_counter()
            assert way(engine) == numel
            times.append(time.perf_counter() - begin)
        added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if engine.communicator.rank == 0:
            print(f"{way.__name__:12} {min(times) * 1e3:8.1f} ms  {added >> 10:5} MiB", flush=True)
    engine.destroy()


if __name__ == "__main__":
    main()
