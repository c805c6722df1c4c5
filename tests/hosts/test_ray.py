"""A job that Ray Train starts: its workers have the environment variables, and nothing else."""

import json
import os
from pathlib import Path

import pytest
from ranks import passed, ran

from .job import ROOT

PYTHON = ROOT / "build/ray/bin/python"
TRAINER = """
import json, os, sys

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(settings):
    import torch
    import zerorun

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    engine, *_ = zerorun.initialize(model, config={
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
    })
    world = zerorun.communicator.world()
    rank, ranks = world.rank, world.world_size
    data = torch.linspace(-1, 1, 64).view(8, 8)[rank * 4 : rank * 4 + 4]
    losses = []
    for _ in range(3):
        loss = engine(data).pow(2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    with open(os.path.join(settings["folder"], f"rank{rank}"), "w") as file:
        json.dump({"ranks": ranks, "losses": losses, "variables": sorted(
            name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if name in os.environ)}, file)


ray.init(num_cpus=4, include_dashboard=False)
TorchTrainer(
    train,
    train_loop_config={"folder": sys.argv[1]},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=sys.argv[1], name="run"),
).fit()
"""


@pytest.mark.skipif(not PYTHON.exists(), reason="Ray is not in build/ray (CONTRIBUTING.md)")
def test_workers_of_a_torch_trainer_are_one_job(tmp_path: Path) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    variables = {"PYTHONPATH": str(ROOT / "build/release/python"), "OMP_NUM_THREADS": "1"}
    passed(ran([PYTHON, script, tmp_path], env=os.environ | variables, timeout=300))
    told = [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in range(2)]
    assert all(one["ranks"] == 2 for one in told)
    assert told[0]["variables"] == ["MASTER_ADDR", "RANK", "WORLD_SIZE"]
    for one in told:
        assert one["losses"][-1] < one["losses"][0]
