"""What runs beside the program, and between its steps."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import torch
import zerorun
from zerorun.metrics import rank_path

from cases.models import *

STEPS = 3


def case_a_file_has_the_plan_and_what_ran_beside_the_program(folder: Path) -> None:
    path = folder / "m.jsonl"
    own = {"comm_timeout": 30, "metrics": str(path)}
    offload = {"offload_optimizer": {"device": "cpu"}} if DEVICE.type == "cpu" else {}
    model = make()
    settings = config(2, zerorun=own)
    settings["zero_optimization"] |= offload
    engine, *_ = zerorun.initialize(model, config=settings | {"optimizer": {"type": "AdamW"}})
    train(engine, STEPS)
    head, *lines = [json.loads(line) for line in rank_path(path, RANK).read_text().splitlines()]
    about = head["run"]
    for category, nbytes in about["plan"].items():
        assert math.isclose(lines[-1]["memory_peak"][category], nbytes, rel_tol=0.03, abs_tol=64)
    assert set(about["limits"]) == (
        {"all_gather", "all_reduce", "reduce_scatter"} if WORLD_SIZE > 1 else set()
    )
    # What measured the limits is of no step.
    assert lines[0]["collectives"].keys() == lines[-1]["collectives"].keys()
    for name, (calls, nbytes, ms) in lines[-1]["collectives"].items():
        assert lines[0]["collectives"][name][:2] == [calls, nbytes]
        assert ms is None if DEVICE.type == "cuda" else ms >= 0
    if offload:
        assert lines[-1]["offload_ms"] + lines[-1]["offload_hidden_ms"] > 0
    engine.destroy()


def case_waiting_for_data_and_saving_are_parts_of_a_step(folder: Path) -> None:
    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4 * BATCH

        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(0.001)
            return torch.randint(8, (8,))

    model = make()
    engine, _, loader, _ = zerorun.initialize(
        model, adamw(model), config=config(1), training_data=Slow()
    )
    seen: list[dict[str, object]] = []
    engine.add_listener(seen.append)
    for batch in loader:
        engine.backward(loss_of(engine, batch))
        engine.step()
        if len(seen) == 1:
            engine.save_checkpoint(folder)
    own = BATCH // WORLD_SIZE
    assert len(seen) == len(loader) == 4
    assert all(own * 1.0 <= m["data_ms"] <= m["other_ms"] for m in seen)
    assert [m["checkpoint_ms"] is None for m in seen] == [True, False, True, True]
    assert seen[1]["checkpoint_ms"] + seen[1]["data_ms"] <= seen[1]["other_ms"]
    engine.destroy()
