#!/usr/bin/env python3
"""The memory that converting a large checkpoint takes.

    python bench/checkpoint/memory.py [--millions 1000] [--ranks 4] [--folder build]

Writes a checkpoint of stage 3 as DeepSpeed's ranks leave it (bf16, AdamW: 12 bytes a parameter),
then runs `zerorun ckpt import --offload` and `zerorun ckpt export` on it, the second to safetensors
in fp32, and prints the peak RSS of each process (ru_maxrss, with the pages of mapped files in it)
and its time. The folder needs four times the bytes of the checkpoint.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SHAPE = (4096, 4096)
NUMEL = SHAPE[0] * SHAPE[1]


def write_checkpoint(folder: Path, layers: int, ranks: int) -> None:
    import torch

    tag = folder / "global_step1"
    tag.mkdir(parents=True)
    (folder / "latest").write_text(tag.name)
    shapes = {f"h.{i}.weight": torch.Size(SHAPE) for i in range(layers)}
    group = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "params": [0]}
    part = layers * NUMEL // ranks
    for rank in range(ranks):
        values = torch.arange(part, dtype=torch.float32).mul_(1e-9).add_(rank)
        states = {"step": torch.tensor(1.0), "exp_avg": values * 1e-3, "exp_avg_sq": values * 1e-6}
        optimizer = {
            "zero_stage": 3,
            "partition_count": ranks,
            "fp32_flat_groups": [values],
            "optimizer_state_dict": {"state": {0: states}, "param_groups": [group]},
        }
        content = {"optimizer_state_dict": optimizer, "ds_version": "0.19.6"}
        torch.save(content, tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        model = {
            "module": {},
            "buffer_names": [],
            "param_shapes": [shapes],
            "frozen_param_shapes": None,
            "shared_params": {},
            "ds_config": {"bf16": {"enabled": True}},
            "global_steps": 1,
        }
        torch.save(model, tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")


def run(*arguments: object) -> tuple[float, float]:
    """GB of a command's peak RSS, and its seconds."""
    command = [sys.executable, "-m", "zerorun", "ckpt", *map(str, arguments)]
    variables = os.environ | {"PYTHONPATH": str(ROOT / "build" / "release" / "python")}
    begin = time.perf_counter()
    child = os.spawnve(os.P_NOWAIT, sys.executable, command, variables)
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)} failed")
    return usage.ru_maxrss * 1024 / 1e9, time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=int, default=1000, help="of parameters")
    parser.add_argument("--ranks", type=int, default=4, help="that saved")
    parser.add_argument("--folder", default="build", help="on a disk with room")
    options = parser.parse_args()
    layers = round(options.millions * 1e6 / NUMEL)
    numel = layers * NUMEL
    share = 14 * numel / options.ranks / 1e9  # with the parameters in bf16
    folder = Path(tempfile.mkdtemp(dir=options.folder, prefix="bench_memory.")).resolve()
    try:
        # In a process of its own: a child begins with its parent's peak.
        if (writer := os.fork()) == 0:
            write_checkpoint(folder / "deepspeed", layers, options.ranks)
            os._exit(0)
        if os.waitpid(writer, 0)[1] != 0:
            sys.exit("the checkpoint could not be written")
        peak, taken = run("import", folder / "deepspeed", folder / "own", "--offload", folder)
        print(
            f"import of {numel / 1e6:.0f} M parameters of stage 3 from {options.ranks} ranks: peak "
            f"RSS {peak:.2f} GB, {peak / share:.2f} x a rank's share, {taken:.0f} s",
            flush=True,
        )
        shutil.rmtree(folder / "deepspeed")
        peak, taken = run("export", folder / "own", folder / "out", "--to", "safetensors")
        nbytes = sum(path.stat().st_size for path in (folder / "out").iterdir())
        print(f"export of {nbytes / 1e9:.2f} GB: peak RSS {peak:.2f} GB, {taken:.0f} s")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
