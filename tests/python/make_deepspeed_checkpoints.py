#!/usr/bin/env python3
"""Writes data/deepspeed_checkpoints.tar.xz: checkpoints of real DeepSpeed, and how it went on.

    DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 python tests/python/make_deepspeed_checkpoints.py

in an environment that has deepspeed and torch for the CPU. A folder per run, with `losses.json`:
the mean losses of the steps after the save, by the ranks that saved.
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.checkpoint import ds_to_universal
from ranks import forked
from uneven_model import CONTINUED, SAVED_AFTER, config_of, groups_of, loss_of, make_model, rows_of

ARCHIVE = Path(__file__).resolve().parent / "data" / "deepspeed_checkpoints.tar.xz"
# Name: (stage, dtype, ranks, further keys of zero_optimization).
RUNS = {
    "stage1-fp32-1": (1, "fp32", 1, {}),
    "stage1-fp32-3": (1, "fp32", 3, {}),
    "stage1-elastic-fp32-2": (1, "fp32", 2, {"elastic_checkpoint": True}),
    "stage1-bf16-2": (1, "bf16", 2, {}),
    "stage1-bf16-accumulated-2": (1, "bf16", 2, {}),
    "stage2-fp32-2": (2, "fp32", 2, {}),
    "stage2-round-robin-3": (2, "fp32", 3, {"round_robin_gradients": True}),
    "stage2-fp16-2": (2, "fp16", 2, {}),
    "stage3-fp32-2": (3, "fp32", 2, {}),
    "stage3-pieces-3": (3, "fp32", 3, {"sub_group_size": 40}),
    "stage3-bf16-2": (3, "bf16", 2, {"stage3_param_persistence_threshold": 0}),
}
UNIVERSAL = ("stage2-fp32-2", "stage3-fp32-2")


def train(folder: Path, name: str) -> None:
    stage, dtype, _, zero = RUNS[name]
    deepspeed.ops.__compatible_ops__.clear()  # which it would compile
    accelerator = get_accelerator()
    if not accelerator.is_fp16_supported():  # without AVX512-FP16 PyTorch's CPU kernels do it too
        accelerator.is_fp16_supported = lambda: True
    deepspeed.init_distributed("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = make_model()
    config = config_of(stage, dtype, world_size, **zero)
    if "accumulated" in name:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=groups_of(model), config=config)
    losses = []
    for step in range(SAVED_AFTER + CONTINUED):
        if step == SAVED_AFTER:
            engine.save_checkpoint(folder / name, client_state={"epoch": 4, "order": [3, 1, 2]})
        loss = loss_of(engine, rows_of(step, rank, world_size))
        engine.backward(loss)
        engine.step()
        total = loss.detach().double().reshape(1)
        dist.all_reduce(total)
        losses.append(total.item() / world_size)
    if rank == 0:
        record = {"losses": losses[SAVED_AFTER:], "deepspeed": deepspeed.__version__}
        record["loss_scale"] = float(engine.optimizer.cur_scale) if dtype == "fp16" else 1.0
        (folder / name / "losses.json").write_text(json.dumps(record, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def convert(folder: Path, name: str) -> None:
    """The run's checkpoint in DeepSpeed's universal format."""
    saved, universal = folder / name, folder / f"universal-{name}"
    tag = (saved / "latest").read_text().strip()
    universal.mkdir()
    sys.argv[1:] = ["--input_folder", str(saved / tag), "--output_folder", str(universal / tag)]
    sys.argv += ["--inject_missing_state", "--num_extract_workers", "1", "--num_merge_workers", "1"]
    ds_to_universal.main(ds_to_universal.parse_arguments())
    (universal / "losses.json").write_bytes((saved / "losses.json").read_bytes())


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in RUNS:
            forked(train, RUNS[name][2], 29560 + list(RUNS).index(name), folder, name)
        for name in UNIVERSAL:
            convert(folder, name)
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            for path in sorted(folder.iterdir()):
                archive.add(path, path.name, filter=_without_scripts)
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size} bytes")


def _without_scripts(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Everything but DeepSpeed's own code, which it copies beside its checkpoints."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return None if member.name.endswith(".py") else member


if __name__ == "__main__":
    main()
