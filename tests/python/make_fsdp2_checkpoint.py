#!/usr/bin/env python3
"""Writes data/fsdp2_checkpoint.tar.xz: a folder of torch.distributed.checkpoint of FSDP2's.

    python tests/python/make_fsdp2_checkpoint.py

Two CPU ranks train the model of uneven_model.py; `losses.json` has the steps after the save.
"""

import json
import tarfile
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import forked
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from uneven_model import CONTINUED, SAVED_AFTER, groups_of, loss_of, make_model, rows_of

ARCHIVE = Path(__file__).resolve().parent / "data" / "fsdp2_checkpoint.tar.xz"
RANKS = 2


def train(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = make_model()
    fully_shard(model)
    optimizer = torch.optim.AdamW(groups_of(model), lr=1e-2, betas=(0.8, 0.95), eps=1e-6)
    losses = []
    for step in range(SAVED_AFTER + CONTINUED):
        if step == SAVED_AFTER:
            saved, states = get_state_dict(model, optimizer)
            dcp.save({"model": saved, "optim": states}, checkpoint_id=folder / "checkpoint")
        loss = loss_of(model, rows_of(step, rank, RANKS))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().double().reshape(1)
        dist.all_reduce(total)
        losses.append(total.item() / RANKS)
    if rank == 0:
        record = {"losses": losses[SAVED_AFTER:], "torch": torch.__version__}
        (folder / "checkpoint" / "losses.json").write_text(json.dumps(record, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        forked(train, RANKS, 29590, folder)
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            archive.add(folder / "checkpoint", "checkpoint")
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
