#!/usr/bin/env python3
"""One training step under DDP, FSDP2, DeepSpeed and zerorun, beside the model alone.

    python bench/peers.py [--deepspeed] [--sides zerorun3 ddp] [--dtype fp32] [--rounds 3]

Two CPU ranks of one thread each, a GPT of 12 x 768 (85 M parameters), micro-batch 1 x 64, AdamW,
gradients clipped at 1. With bf16 every side computes in bf16 and updates parameters and AdamW's
states in fp32: FSDP2 by its MixedPrecisionPolicy, DDP by autocast. Every side runs as a job of its
own; jobs take turns, and the least time of all rounds counts, for the step and for forward and
backward alone, which every job measures on the bare model first. The peak of memory is that of a
rank's resident pages; those that ranks share count in equal parts. `--deepspeed` installs DeepSpeed
into build/peers, without which it is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from harness import (
    BUILD,
    SHAPES,
    deepspeed_environment,
    keep_least,
    least_ms,
    make_gpt2,
    rows_of,
    torch_step,
)

RANKS, TOKENS = 2, 64
WARMUP, STEPS = 2, 6
TARGETS = {"zerorun1": 1.35, "zerorun2": 1.35, "zerorun3": 1.5}
SIDES = ["ddp", "fsdp2", *(f"deepspeed{stage}" for stage in (1, 2, 3))]
SIDES += [f"zerorun{stage}" for stage in range(4)]


def make_model(shape: str, dtype: str):
    import torch

    torch.manual_seed(0)
    return make_gpt2(shape, dtype, n_positions=TOKENS)


def engine_step(engine, tokens) -> Callable[[], None]:
    def step() -> None:
        engine.backward(engine(tokens, labels=tokens).loss)
        engine.step()

    return step


def ds_config(zero: dict, dtype: str, ours: bool) -> dict:
    """Of zerorun, or of DeepSpeed without a compiler and with buffers that fit the model."""
    params = {"lr": 1e-4, "weight_decay": 0.01}
    buffers = {"reduce_bucket_size": 2e7, "allgather_bucket_size": 2e7}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": dict(zero) if ours else {**zero, **buffers},
        "optimizer": {"type": "AdamW", "params": params if ours else params | {"torch_adam": True}},
        "bf16": {"enabled": dtype == "bf16"},
    }


def make_step(side: str, model, dtype: str, tokens) -> Callable[[], None]:
    """Of ddp, fsdp2, or a program with the configuration that `ds_config` makes of a stage."""
    import torch

    ours = side.startswith("zerorun")
    config = ds_config({"stage": int(side[-1])} if side[-1].isdigit() else {}, dtype, ours)
    if ours:
        import zerorun

        return engine_step(zerorun.initialize(model, config=config)[0], tokens)
    torch.distributed.init_process_group("gloo")
    if side.startswith("deepspeed"):
        return deepspeed_step(model, config, tokens)
    model.float()
    if side == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        shard_blocks(model, dtype=dtype)

    def forward():
        with torch.autocast("cpu", torch.bfloat16, enabled=(side, dtype) == ("ddp", "bf16")):
            return model(tokens, labels=tokens).loss

    return torch_step(model, forward, 0.01)


def deepspeed_step(model, config: dict, tokens) -> Callable[[], None]:
    import deepspeed

    parameters = model.parameters()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, config=config)
    return engine_step(engine, tokens)


def shard_blocks(model, mesh=None, dtype: str = "fp32") -> None:
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if dtype == "bf16" else None)
    for module in [*model.transformer.h, model]:
        fully_shard(module, mesh=mesh, mp_policy=policy)


def peak_megabytes() -> float:
    """Of resident memory, without the other ranks' parts of the pages that are shared now."""
    fields = {}
    for name in ("status", "smaps_rollup"):
        for line in Path(f"/proc/self/{name}").read_text().splitlines():
            if line.endswith(" kB"):
                fields[line.split(":")[0]] = int(line.split()[-2])
    return (fields["VmHWM"] - fields["RssShmem"] + fields["Pss_Shmem"]) / 1024


def run_rank(options: argparse.Namespace) -> None:
    """One rank of one side; rank 0 prints its figures."""
    import torch

    torch.set_num_threads(1)
    model = make_model(options.shape, options.dtype)
    tokens = torch.arange(TOKENS).view(1, TOKENS) * 37 % 256

    def bare() -> None:
        model(tokens, labels=tokens).loss.backward()
        model.zero_grad()

    alone = least_ms(bare, WARMUP, STEPS)
    step = least_ms(make_step(options.side, model, options.dtype, tokens), WARMUP, STEPS)
    peak = peak_megabytes()
    time.sleep(1)  # the other rank measures before this one's memory goes
    if os.environ["RANK"] == "0":
        print(json.dumps({"alone": alone, "step": step, "peak": peak}), flush=True)
    os._exit(0)  # what peers do at the end is not measured


def measure(side: str, options: argparse.Namespace, environment: str) -> dict[str, float]:
    command = [BUILD / "bin" / "zerorun", "--accelerator", "cpu", "--num_gpus", RANKS]
    command += ["--no_local_rank", __file__, "--side", side]
    command += ["--shape", options.shape, "--dtype", options.dtype]
    variables = {"PYTHONPATH": str(BUILD / "python"), "OMP_NUM_THREADS": "1"}
    variables |= {"VIRTUAL_ENV": environment if side.startswith("deepspeed") else sys.prefix}
    variables |= {"ZERORUN_COMPAT": "0", "DS_ACCELERATOR": "cpu"}
    return rows_of(side, command, variables)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deepspeed", action="store_true", help="install and measure DeepSpeed")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        run_rank(options)
    environment = deepspeed_environment() if options.deepspeed else ""
    sides = [s for s in options.sides if options.deepspeed or not s.startswith("deepspeed")]
    best: dict[str, dict[str, float]] = {}
    for _ in range(options.rounds):
        for side in sides:
            keep_least(best, side, measure(side, options, environment))
    alone = min(figures["alone"] for figures in best.values())
    print(f"forward and backward alone {alone:.0f} ms ({options.shape}, {options.dtype})")
    print(f"{'':12}{'step ms':>9}{'ratio':>7}{'target':>8}{'peak MB':>9}")
    missed = False
    for side, figures in best.items():
        ratio, target = figures["step"] / alone, TARGETS.get(side)
        missed |= target is not None and ratio > target
        shown = f"{target:8.2f}" if target else " " * 8
        print(f"{side:12}{figures['step']:9.0f}{ratio:7.2f}{shown}{figures['peak']:9.0f}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
