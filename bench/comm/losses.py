#!/usr/bin/env python3
"""What quantized communication costs in a whole run of `train`'s default model: its loss.

    sudo .venv/bin/python bench/comm/losses.py [--seeds 1 2 3] [--steps 700] [--runs plain 4bits]
                                               [--stage 2]

The model trains at stage 3, or another, in bf16 with its own optimizer, Muon, on two hosts (network
namespaces) of one CPU rank each. At stage 3 every parameter is gathered before each use. A run's
figure is the mean loss of its last 50 steps. `faster` and `slower` are `plain` with a learning rate
that is 0.01 % larger or smaller: what differs without any reason. `4bits` and `8bits` send
parameters in 8 bits and gradients in 4 or 8; `feedback` adds all that the rounding to 4 bits loses
to the next gradients.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))
from host_namespaces import Hosts, rank_environment, why_not

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "build" / "release" / "libexec" / "zerorun" / "train"
HOSTS, LAST = 2, 50
RATE = 0.03
ALL_GATHERED = {"stage3_param_persistence_threshold": 0}
QUANTIZED = ALL_GATHERED | {"zero_quantized_weights": True, "zero_quantized_gradients": True}
RUNS = {
    "plain": ALL_GATHERED,
    "faster": ALL_GATHERED,
    "slower": ALL_GATHERED,
    "qwz": ALL_GATHERED | {"zero_quantized_weights": True},
    "8bits": QUANTIZED,
    "4bits": QUANTIZED,
    "4bits+feedback": QUANTIZED | {"zeropp_loco_param": {"err_beta": 0}},
}
RATES = {"faster": 1.0001, "slower": 0.9999}


def config_of(run: str, stage: int, steps: int) -> dict:
    rate = RATE * RATES.get(run, 1)
    muon = {"lr": rate, "muon_lr": rate, "adam_lr": 0.5 / 128, "momentum": 0.95}
    muon |= {"betas": [0.9, 0.95], "eps": 1e-10, "weight_decay": 0.1}
    return {
        "bf16": {"enabled": True},
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "Muon", "params": muon},
        "scheduler": {
            "type": "linear",
            "params": {"total_num_steps": steps, "warmup_num_steps": 20},
        },
        "zero_optimization": {"stage": stage, **RUNS[run]},
        "zerorun": {"quantized_gradient_bits": 8 if run == "8bits" else 4},
    }


def loss_of(run: str, stage: int, seed: int, steps: int) -> float:
    """The mean loss of the last steps. Exits with the program's words if a rank fails."""
    with tempfile.TemporaryDirectory() as name, Hosts(HOSTS) as hosts:
        config, metrics = Path(name) / "config.json", Path(name) / "metrics.jsonl"
        config.write_text(json.dumps(config_of(run, stage, steps)))
        command = [str(TRAIN), "--accelerator", "cpu", "--config", str(config)]
        command += ["--steps", str(steps), "--seed", str(seed), "--seq_len", "128"]
        command += ["--metrics", str(metrics), "--save", "", "--sample", ""]
        jobs = []
        for rank in range(HOSTS):
            variables = rank_environment(hosts, rank, HOSTS, 1, 29500)
            jobs.append(
                subprocess.Popen(
                    hosts.command(rank, command),
                    env=variables | {"GLOO_SOCKET_IFNAME": "eth0"},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        errors = [job.communicate()[1] for job in jobs]
        if any(job.returncode for job in jobs):
            sys.exit(f"{run}, seed {seed}: {''.join(errors)}")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    return sum(losses[-LAST:]) / len(losses[-LAST:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--stage", type=int, choices=[1, 2, 3], default=3)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    options = parser.parse_args()
    if missing := why_not():
        sys.exit(f"losses.py: {missing}")
    for run in options.runs:
        losses = [loss_of(run, options.stage, seed, options.steps) for seed in options.seeds]
        print(run, *(f"{loss:.4f}" for loss in losses), flush=True)


if __name__ == "__main__":
    main()
