#!/usr/bin/env python3
"""One AdamW step of mixed precision against PyTorch's fused AdamW and DeepSpeed's CPU Adam.

    python bench/optimizer/peers.py build/release/bench/optimizer/bench_optimizer

The same work on all sides, one thread: a gradient in bf16, master weights and moments in fp32, the
new parameter in bf16. Theirs update fp32 from fp32, so the conversions before and after are part of
it. The sides take turns, so that other work on the machine hits all of them; the least time of each
counts. DeepSpeed is left out where it is not installed (DS_BUILD_OPS=0 DS_ACCELERATOR=cpu pip
install deepspeed; it compiles its kernel at the first use, which needs ninja).
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from harness import least_ms

NUMEL = 43_000_000 // 4096 * 4096  # bench_optimizer's
ROW = "adamw bf16 grad, bf16 param"
BYTES = 28  # of one element in that row
TARGET = 1.5


class Tensors:
    """What a mixed-precision step reads and writes."""

    def __init__(self) -> None:
        self.master = torch.nn.Parameter(torch.ones(NUMEL))
        self.master.grad = torch.full((NUMEL,), 1e-3)
        self.grad = torch.full((NUMEL,), 1e-3, dtype=torch.bfloat16)
        self.param = torch.ones(NUMEL, dtype=torch.bfloat16)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.master.grad.copy_(self.grad)
        optimizer.step()
        self.param.copy_(self.master.data)


def zerorun_seconds(program: str) -> float:
    """The least of ten steps."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [program, f"--benchmark_filter={ROW}/1/"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(rf"^{ROW} +1 +([0-9.]+)", result.stdout, re.MULTILINE)
    if not found:
        sys.exit(f"{program} printed no row '{ROW}':\n{result.stdout}")
    return NUMEL * BYTES / (float(found[1]) * 1e9)


def make_peers(tensors: Tensors) -> dict[str, torch.optim.Optimizer]:
    settings = {"lr": 1e-3, "weight_decay": 0.01}
    peers = {"torch fused": torch.optim.AdamW([tensors.master], fused=True, **settings)}
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam
    except ImportError as error:
        print(f"DeepSpeed left out: {error}")
    else:
        peers["DeepSpeed"] = DeepSpeedCPUAdam([tensors.master], **settings)
    return peers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="bench_optimizer")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tensors = Tensors()
    peers = make_peers(tensors)
    for optimizer in peers.values():
        tensors.step(optimizer)  # allocates the moments
    best = dict.fromkeys(["zerorun", *peers], float("inf"))
    for _ in range(arguments.rounds):
        best["zerorun"] = min(best["zerorun"], zerorun_seconds(arguments.program))
        for name, optimizer in peers.items():
            seconds = least_ms(lambda o=optimizer: tensors.step(o), 0, 10) / 1e3
            best[name] = min(best[name], seconds)
    missed = False
    for name, seconds in best.items():
        ratio = seconds / best["zerorun"]
        print(f"{name:12} {NUMEL / seconds * 1e-6:6.0f} M parameters/s  zerorun {ratio:.2f} x")
        missed |= name != "zerorun" and ratio < TARGET
    if missed:
        sys.exit(f"zerorun is less than {TARGET} x as fast")


if __name__ == "__main__":
    main()
