#!/usr/bin/env python3
"""A GPU's figures: kernels beside a copy, training GPT-2 beside PyTorch, and what offloading adds.

    python bench/gpu/peers.py build/release/bench/gpu/bench_gpu [--part bandwidth rate offload wide]

- bandwidth: the kernels of a step and of `train`, over the rate at which the GPU copies memory, on
  numbers with the spread of gradients.
- rate: GPT-2 in bf16 on 16 x 1024 tokens, AdamW on fp32 masters, gradients clipped at 1; zerorun's
  `train` and PyTorch with torch.compile, scaled_dot_product_attention and the fused AdamW take
  turns, and the least time of a step counts. PyTorch's attention adds up gradients in any order, so
  the figures with a target are with --fast_attention; the default, whose bits are the same in every
  run, is shown beside it. Operations are six for each parameter of a matrix
  and token, and attention's; their peak is what PyTorch reaches on large bf16 matrices. 50304
  tokens, a multiple of 64: other vocabularies would cost PyTorch more.
- offload: gpt2-xl at stage 3 on 8 x 1024 tokens: the part of a step that parameters on the host
  add. With states there too the host's update is in the figure, so it has no target.
- wide: the same for a model whose blocks exceed stage3_prefetch_bucket_size, and with the states on
  disk, in the folder that the program is called in.

bench_train is expected beside the program. Exits 4 when a target is missed, 3 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from harness import Targets, least_ms

TARGETS = {"kernel": 0.9, "matmul": 0.5, "pytorch": 1.1, "exposed": 0.1}
KERNELS = ("AdamW", "sum of squares")
VOCABULARY = 50304
DISK_ROUNDS = 3  # a step moves about 20 GB to and from the disk


def bandwidth(options: argparse.Namespace, targets: Targets) -> None:
    trial = ["--accelerator", "cpu", "--numel", "65536", "--repeats", "1"]
    command = [options.program, *(trial if options.device == "cpu" else [])]
    job = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    for line in job.stdout:
        print(line, end="", flush=True)
        name, _, rest = line.partition("  ")
        if name.startswith(KERNELS):
            share = float(re.search(r"([\d.]+) % of copy", rest).group(1)) / 100
            targets.show(f"{name} over copy", share, "kernel")
    if job.wait() != 0:
        raise subprocess.CalledProcessError(job.returncode, job.args)


def bench_train(options: argparse.Namespace, *arguments: object) -> dict[str, dict[str, Any]]:
    """The program's rows by their names."""
    program = options.program.resolve().parents[1] / "train" / "bench_train"
    rounds = min(options.rounds, DISK_ROUNDS) if "--nvme" in arguments else options.rounds
    command = [program, "--ranks", 1, "--accelerator", options.device, "--dtype", "bf16"]
    command += ["--vocabulary", VOCABULARY, "--rounds", rounds, *arguments]
    if options.device == "cuda":
        command += ["--threads", len(os.sched_getaffinity(0))]
    output = subprocess.run(
        list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return {row["name"]: row for row in map(json.loads, output.splitlines())}


# --- beside PyTorch ---


def make_torch_step(options: argparse.Namespace, backend: str) -> Callable[[], None]:
    """The same training step in PyTorch: 16-bit parameters, an optimizer of fp32 masters."""
    import torch
    from gpt2 import Gpt2

    torch.manual_seed(0)
    model = Gpt2(options.model, VOCABULARY, options.seq_len).to(options.device, torch.bfloat16)
    compiled = torch.compile(model, backend=backend)
    parameters = list(model.parameters())
    masters = [parameter.detach().float() for parameter in parameters]
    for master in masters:
        master.grad = torch.zeros_like(master)
    optimizer = torch.optim.AdamW(masters, lr=1e-4, weight_decay=0.1, fused=True)
    tokens = torch.arange(options.batch * options.seq_len, device=options.device) * 37 % 256
    tokens = tokens.view(options.batch, options.seq_len)

    @torch.no_grad()
    def update() -> None:
        torch._foreach_copy_([m.grad for m in masters], [p.grad for p in parameters])
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        torch._foreach_copy_(parameters, masters)
        for parameter in parameters:
            parameter.grad = None

    def step() -> None:
        loss = compiled(tokens, tokens)
        loss.backward()
        update()
        loss.item()  # waits for the GPU, as zerorun's side does

    return step


def start_torch(options: argparse.Namespace) -> tuple[Callable[[], None], str]:
    """The step, run once, and what computes it: where nothing compiles, PyTorch without that."""
    import torch

    try:
        step = make_torch_step(options, options.backend)
        step()
    except Exception as error:
        print(f"torch.compile failed: {str(error).strip().splitlines()[0]}", flush=True)
        return make_torch_step(options, "eager"), f"PyTorch {torch.__version__}, not compiled"
    return step, f"PyTorch {torch.__version__} with torch.compile"


def matmul_tflops(device: str) -> float:
    import torch

    size = 8192 if device == "cuda" else 128
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    products = 20

    def multiply() -> None:
        for _ in range(products):
            result = a @ b
        result[0, 0].item()

    return products * 2 * size**3 / least_ms(multiply, 2, 5) * 1e-9


def rate(options: argparse.Namespace, targets: Targets) -> None:
    peak = matmul_tflops(options.device)
    step, peer = start_torch(options)
    theirs = float("inf")
    # cuDNN's, so on GPUs only.
    attention = {"deterministic": (), "fast": ("--fast_attention",) * (options.device == "cuda")}
    best: dict[str, dict[str, Any]] = {}
    for turn in range(options.turns):
        theirs = min(theirs, least_ms(step, 3 if turn == 0 else 1, options.rounds))
        shape = ("--model", options.model, "--batch", options.batch, "--seq_len", options.seq_len)
        for name, flags in attention.items():
            row = bench_train(options, *shape, *flags, "--stages", 2)["step at stage 2"]
            best[name] = min(best.get(name, row), row, key=lambda found: found["ms_min"])
    tokens = options.batch * options.seq_len
    shown = f"{options.model} bf16, {options.batch} x {options.seq_len} tokens"
    for name, row in best.items():
        print(
            f"{shown}: zerorun, {name} attention {row['tokens_per_s']:.0f} tokens/s, "
            f"{row['tflops']:.1f} TFLOP/s, {theirs / row['ms_min']:.2f} x {peer}"
        )
    print(f"{shown}: {peer} {tokens / theirs * 1e3:.0f} tokens/s")
    ours = best["fast"]
    targets.show(f"over the matmul rate of {peak:.1f} TFLOP/s", ours["tflops"] / peak, "matmul")
    targets.show(f"over {peer}", theirs / ours["ms_min"], "pytorch")


# --- offloading ---


def offload(options: argparse.Namespace, targets: Targets) -> None:
    choices = ((), ("--offload_param",), ("--offload_param", "--offload_optimizer"))
    expose(options, options.large, options.large, choices, targets)


def wide(options: argparse.Namespace, targets: Targets) -> None:
    """12 times 2304 squared, 63.7 million, is more than the 50 million of the limit."""
    width = 2304 if options.device == "cuda" else 64
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": width}
    config |= {"n_layer": 12, "n_head": width // 64, "n_positions": options.seq_len}
    config |= {"vocab_size": VOCABULARY}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        model = Path(folder) / "config.json"
        model.write_text(json.dumps(config))
        on_disk = ("--offload_optimizer", "--nvme", folder)
        choices = ((), ("--offload_param",), on_disk)
        expose(options, f"12 blocks of width {width}", model, choices, targets)


def expose(
    options: argparse.Namespace,
    name: str,
    model: str | Path,
    choices: tuple[tuple[str, ...], ...],
    targets: Targets,
) -> None:
    """Steps with nothing offloaded, with parameters on the host, and with what comes third."""
    shape = ("--model", model, "--batch", options.batch // 2, "--seq_len", options.seq_len)
    step = []
    for flags in choices:
        row = bench_train(options, *shape, "--stages", 3, "--overlap", *flags)["step at stage 3"]
        step.append(row["ms_min"])
        where = [flag.replace("--", "") for flag in flags if flag.startswith("--")]
        shown = " ".join(where) or "all on the device"
        print(f"{name}, stage 3, {shown}: {row['ms_min']:.0f} ms", flush=True)
    exposed = max(0.0, 1 - step[0] / step[1])
    targets.show("exposed copies of offload_param", exposed, "exposed", most=True)


PARTS = {"bandwidth": bandwidth, "rate": rate, "offload": offload, "wide": wide}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=Path, help="the built bench_gpu")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a trial")
    parser.add_argument("--model", default="gpt2", help="of the rate")
    parser.add_argument("--large", default="gpt2-xl", help="model of offloading")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seq_len", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--backend", default="inductor", help="torch.compile's")
    options = parser.parse_args()
    targets = Targets(TARGETS)
    for part in options.part:
        try:
            PARTS[part](options, targets)
        except subprocess.CalledProcessError as error:
            if error.returncode == 3:  # no GPU, says the program
                print(error.stderr or "", end="", file=sys.stderr)
                return 3
            sys.exit(f"{part}: {error}\n{error.stderr or ''}")
    return 4 if targets.missed else 0


if __name__ == "__main__":
    sys.exit(main())
