#!/usr/bin/env python3
"""Saves and loads of zerorun, DeepSpeed and PyTorch's DCP, beside plain direct writes and reads.

    python bench/checkpoint/peers.py [PROGRAM] [--deepspeed] [--millions 85] [--folder .]

One rank, matrices of a million parameters, AdamW: fp32 parameters with DCP, bf16 ones and fp32
masters with the others. Every side is a process; they take turns, and the least time of all rounds
counts. A save is over when its files are on the disk (DeepSpeed leaves that to the system, so its
files are synced here); loads begin with no file in the system's cache. A stall is the time until
the call of an asynchronous save returns. Each process also writes and reads as many bytes past the
cache, which is what the ratios are to, and copies them once in memory. `--deepspeed` installs
DeepSpeed into build/peers, without which it is left out. PROGRAM, the built bench_checkpoint, is
run first where it is given.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import BUILD, ROOT, deepspeed_environment, keep_least, rows_of

SIDES = ["zerorun", "deepspeed", "dcp"]
WIDTH, BLOCK = 1024, 8 << 20
TURNS = 2  # of a process


def make_model(millions: int):
    import torch

    class Matrices(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(
                torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(millions)
            )

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                values = layer(values)
            return values.float().square().mean()

    return Matrices()


class Side:
    """A trained model, its saves and its loads."""

    def __init__(
        self, save: Callable[[Path], Any], load: Callable[[Path], Any], begin: Any, end: Any
    ) -> None:
        self.save, self.load, self.begin, self.end = save, load, begin, end


def with_engine(initialize: Any, millions: int, *, asynchronous: bool) -> Side:
    import torch

    adamw = {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}
    zero = {"stage": 1, "reduce_bucket_size": 2e7, "allgather_bucket_size": 2e7}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "optimizer": adamw,
    }
    model = make_model(millions)
    engine = initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    engine.backward(engine(torch.ones(1, WIDTH, dtype=torch.bfloat16)))
    engine.step()

    def save(folder: Path) -> None:
        engine.save_checkpoint(str(folder), tag="bench")

    def load(folder: Path) -> None:
        assert engine.load_checkpoint(str(folder), tag="bench")[0]

    def begin(folder: Path) -> None:
        engine.save_checkpoint(str(folder), tag="beside", blocking=False)

    if not asynchronous:
        return Side(save, load, None, None)
    return Side(save, load, begin, lambda _: engine.wait_for_checkpoint())


def with_dcp(millions: int) -> Side:
    import torch
    import torch.distributed.checkpoint as dcp

    model = make_model(millions)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model(torch.ones(1, WIDTH)).backward()
    optimizer.step()
    optimizer.zero_grad()
    values = model.state_dict()
    names = dict(enumerate(values))
    moments = optimizer.state_dict()["state"]
    state = {"model": values, "optim": {names[i]: moments[i] for i in names}}
    return Side(
        lambda folder: dcp.save(state, checkpoint_id=folder / "bench"),
        lambda folder: dcp.load(state, checkpoint_id=folder / "bench"),
        lambda folder: dcp.async_save(state, checkpoint_id=folder / "beside"),
        lambda future: future.result(),
    )


def make_side(name: str, millions: int, folder: Path) -> Side:
    if name == "zerorun":
        import zerorun

        return with_engine(zerorun.initialize, millions, asynchronous=True)
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
    if name == "dcp":
        return with_dcp(millions)
    import deepspeed

    return with_engine(deepspeed.initialize, millions, asynchronous=False)


def plain(path: Path, nbytes: int, flags: int) -> None:
    """Writes or reads a file past the system's cache."""
    file = os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    with mmap.mmap(-1, BLOCK) as block:  # whole pages, as direct transfers need
        for offset in range(0, nbytes // BLOCK * BLOCK, BLOCK):
            move = os.pwritev if flags & os.O_WRONLY else os.preadv
            assert move(file, [block], offset) == BLOCK
    os.fsync(file)
    os.close(file)


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def on_disk(folder: Path, *, forget: bool = False) -> None:
    """Returns when all files are on the disk, or leaves none of them in the cache besides."""
    for path in files_of(folder):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        if forget:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def run_side(name: str, millions: int, folder: Path) -> dict[str, float]:
    """The least times of one process, in seconds; and bytes."""
    import torch

    side = make_side(name, millions, folder)
    nbytes = 12 * millions * WIDTH * WIDTH
    copied = min(nbytes, 1 << 30)  # a large model leaves no room for two more copies of it
    source, target = torch.ones(copied, dtype=torch.uint8), torch.zeros(copied, dtype=torch.uint8)
    best: dict[str, float] = {}

    def take(what: str, work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = work()
        best[what] = min(best.get(what, float("inf")), time.perf_counter() - begin)
        return result

    def save_to_disk() -> None:
        side.save(folder)
        on_disk(folder)

    out = folder / "plain"
    for _ in range(TURNS):
        out.unlink(missing_ok=True)
        take("write", lambda: plain(out, nbytes, os.O_CREAT | os.O_WRONLY))
        take("read", lambda: plain(out, nbytes, os.O_RDONLY))
        out.unlink()
        take("save", save_to_disk)
        best["bytes"] = sum(path.stat().st_size for path in files_of(folder / "bench"))
        on_disk(folder, forget=True)
        take("load", lambda: side.load(folder))
        take("copy", lambda: target.copy_(source))
        if side.begin:
            side.end(take("stall", lambda: side.begin(folder)))
            shutil.rmtree(folder / "beside", ignore_errors=True)
    best["copy"] *= nbytes / copied
    return best


def measure(name: str, options: argparse.Namespace, environment: str) -> dict[str, float]:
    python = f"{environment}/bin/python" if name == "deepspeed" else sys.executable
    variables = {"PYTHONPATH": str(BUILD / "python"), "ZERORUN_COMPAT": "0"}
    variables |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    variables |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29571"}
    # DeepSpeed compiles there; a compilation that was killed elsewhere leaves a lock it waits for.
    variables["TORCH_EXTENSIONS_DIR"] = str(ROOT / "build" / "peers" / "extensions")
    if name == "zerorun":
        variables = {key: variables[key] for key in ("PYTHONPATH", "ZERORUN_COMPAT")}
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="bench_checkpoint.") as folder:
        command = [python, __file__, "--side", name, "--millions", str(options.millions)]
        return rows_of(name, [*command, "--folder", folder], variables)[0]


def show(found: dict[str, dict[str, float]], millions: int) -> None:
    print(f"{millions} M parameters; x: its rate by that of direct writes or reads of its process")
    print(f"{'':10}{'GB':>6}{'save s':>9}{'x':>6}{'load s':>9}{'x':>6}{'stall s':>9}{'copy s':>8}")
    for name, best in found.items():
        plain_nbytes = 12 * millions * WIDTH * WIDTH
        scale = best["bytes"] / plain_nbytes
        stall = f"{best['stall']:9.3f}" if "stall" in best else f"{'-':>9}"
        print(
            f"{name:10}{best['bytes'] / 1e9:6.2f}"
            f"{best['save']:9.3f}{scale * best['write'] / best['save']:6.2f}"
            f"{best['load']:9.3f}{scale * best['read'] / best['load']:6.2f}"
            f"{stall}{best['copy']:8.3f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", nargs="?", help="the built bench_checkpoint")
    parser.add_argument("--deepspeed", action="store_true", help="install and measure DeepSpeed")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--millions", type=int, default=85, help="of parameters")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", default=".", help="on the disk that is measured")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        best = run_side(options.side, options.millions, Path(options.folder).resolve())
        print(json.dumps(best), flush=True)
        os._exit(0)  # what peers do at the end is not measured
    if options.program:
        subprocess.run([options.program, options.folder, str(options.millions)], check=True)
    environment = deepspeed_environment() if options.deepspeed else ""
    found: dict[str, dict[str, float]] = {}
    for _ in range(options.rounds):
        for name in options.sides:
            if name == "deepspeed" and not options.deepspeed:
                continue
            keep_least(found, name, measure(name, options, environment))
    show(found, options.millions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
