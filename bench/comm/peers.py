#!/usr/bin/env python3
"""Shared-memory collectives against torch.distributed's gloo, in one run, on the same sizes.

    python bench/comm/peers.py build/release/bench/comm/bench_comm

Both sides: two processes of one thread, bf16. Rounds of the two alternate, so that other work on
the machine hits both; the least time of each counts. Prints the rates and their ratio.
"""

import argparse
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from harness import rows_of

TARGET = 8.0


def _gloo_rank(rank: int, ranks: int, port: int, numel: int, repeats: int, results) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
    )
    full = torch.ones(numel, dtype=torch.bfloat16)
    shard = torch.empty(numel // ranks, dtype=torch.bfloat16)
    calls = {
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(shard, full),
        "all_gather": lambda: dist.all_gather_into_tensor(full, shard),
    }
    for name, call in calls.items():
        call()
        taken = []
        for _ in range(repeats):
            dist.barrier()
            begin = time.perf_counter()
            call()
            slowest = torch.tensor([time.perf_counter() - begin])
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            taken.append(slowest.item())
        if rank == 0:
            results.put((name, min(taken)))
    dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def gloo(ranks: int, mib: int, repeats: int) -> dict[str, float]:
    """The least seconds of each collective."""
    numel = mib * 2**20 // 2 // ranks * ranks
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(_gloo_rank, (ranks, _free_port(), numel, repeats, results), nprocs=ranks)
    return dict(results.get() for _ in range(2))


def zerorun(program: str, ranks: int, mib: int, repeats: int) -> dict[str, float]:
    """The least seconds of each collective."""
    command = [program, f"--ranks={ranks}", f"--mib={mib}", f"--repeats={repeats}"]
    rows = rows_of("bench_comm", command, {})
    seconds = {row["name"]: row["us_min"] / 1e6 for row in rows}
    return {
        "reduce_scatter": seconds["reduce_scatter bf16 in place"],
        "all_gather": seconds["all_gather bf16"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the built bench_comm")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mib", type=int, default=163, help="size of the full tensor")
    parser.add_argument("--repeats", type=int, default=5, help="per round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sizes = (options.ranks, options.mib, options.repeats)
    best: dict[tuple[str, str], float] = {}
    for _ in range(options.rounds):
        for side, seconds in (("shm", zerorun(options.program, *sizes)), ("gloo", gloo(*sizes))):
            for name, value in seconds.items():
                best[side, name] = min(value, best.get((side, name), value))
    gigabytes = options.mib * 2**20 / 1e9
    good = True
    for name in ("reduce_scatter", "all_gather"):
        ratio = best["gloo", name] / best["shm", name]
        good &= ratio >= TARGET
        print(
            f"{name} of {options.mib} MiB bf16, {options.ranks} ranks: "
            f"shm {gigabytes / best['shm', name]:.2f} GB/s, "
            f"gloo {gigabytes / best['gloo', name]:.2f} GB/s, "
            f"ratio {ratio:.1f} (target {TARGET:.0f})"
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
