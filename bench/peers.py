#!/usr/bin/env python3
"""One training step under DDP, FSDP2, DeepSpeed and zerorun, beside the model alone.

    python bench/peers.py [--deepspeed] [--sides zerorun3 ddp] [--dtype fp32] [--rounds 3]

Two CPU ranks of one thread each, a GPT of 12 x 768 (85 M parameters), micro-batch 1 x 64, AdamW,
gradients clipped at 1. Every side runs as a job of its own; jobs take turns, and the least time of
all rounds counts, for the step and for forward and backward alone, which every job measures on the
bare model first. Peak RSS is that of a rank, with its part of shared memory. `--deepspeed` installs
DeepSpeed into build/peers, without which it is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from environments import deepspeed_environment
from timing import least_ms

ROOT = Path(__file__).resolve().parent.parent
LAUNCHER = ROOT / "build" / "release" / "bin" / "zerorun"
RANKS, TOKENS = 2, 64
SHAPES = {"gpt2": (12, 768, 12), "mini": (6, 384, 6), "nano": (4, 128, 4)}
WARMUP, STEPS = 2, 6
TARGETS = {"zerorun1": 1.35, "zerorun2": 1.35, "zerorun3": 1.5}
SIDES = ["ddp", "fsdp2", *(f"deepspeed{stage}" for stage in (1, 2, 3))]
SIDES += [f"zerorun{stage}" for stage in range(4)]


def make_model(shape: str, dtype: str):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, heads = SHAPES[shape]
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=TOKENS, n_layer=layers, n_embd=width, n_head=heads,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    return GPT2LMHeadModel(config).to(torch.bfloat16 if dtype == "bf16" else torch.float32)


def torch_step(model, forward, shard_norm: bool) -> Callable[[], None]:
    """A step of an ordinary loop around `forward`."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        forward().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if shard_norm and hasattr(norm, "full_tensor"):
            norm.full_tensor()
        optimizer.step()
        optimizer.zero_grad()

    return step


def engine_step(engine, tokens) -> Callable[[], None]:
    def step() -> None:
        engine.backward(engine(tokens, labels=tokens).loss)
        engine.step()

    return step


def make_step(side: str, model, dtype: str, tokens) -> Callable[[], None]:
    import torch.distributed as dist

    stage = int(side[-1]) if side[-1].isdigit() else 0
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "bf16": {"enabled": dtype == "bf16"},
    }
    if side.startswith("zerorun"):
        import zerorun

        return engine_step(zerorun.initialize(model, config=config)[0], tokens)
    dist.init_process_group("gloo")
    if side.startswith("deepspeed"):
        import deepspeed

        # Without a compiler, and with buffers that fit the model.
        config["optimizer"]["params"]["torch_adam"] = True
        config["zero_optimization"] |= {"reduce_bucket_size": 2e7, "allgather_bucket_size": 2e7}
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config
        )
        return engine_step(engine, tokens)
    if side == "ddp":
        wrapped = __import__("torch").nn.parallel.DistributedDataParallel(model)
        return torch_step(model, lambda: wrapped(tokens, labels=tokens).loss, False)
    from torch.distributed.fsdp import fully_shard

    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    return torch_step(model, lambda: model(tokens, labels=tokens).loss, True)


def peak_megabytes() -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    fields = {line.split(":")[0]: line.split()[1] for line in status if line.startswith("Vm")}
    return int(fields["VmHWM"]) / 1024


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
    if os.environ["RANK"] == "0":
        print(json.dumps({"alone": alone, "step": step, "peak": peak_megabytes()}), flush=True)
    os._exit(0)  # what peers do at the end is not measured


def measure(side: str, options: argparse.Namespace, environment: str) -> dict[str, float]:
    command = [LAUNCHER, "--accelerator", "cpu", "--num_gpus", str(RANKS), "--no_local_rank"]
    command += [__file__, "--side", side, "--shape", options.shape, "--dtype", options.dtype]
    variables = {"PYTHONPATH": str(ROOT / "build" / "release" / "python"), "OMP_NUM_THREADS": "1"}
    variables |= {"VIRTUAL_ENV": environment if side.startswith("deepspeed") else sys.prefix}
    variables |= {"ZERORUN_COMPAT": "0", "DS_ACCELERATOR": "cpu"}
    job = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    if job.returncode != 0:
        sys.exit(f"{side} failed:\n{job.stderr[-3000:]}")
    line = next(line for line in job.stdout.splitlines() if line.startswith("{"))
    return json.loads(line)


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
            found = measure(side, options, environment)
            known = best.setdefault(side, found)
            best[side] = {key: min(known[key], found[key]) for key in found}
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
