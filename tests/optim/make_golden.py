"""Writes data/adam_golden.json: what torch.optim does with random parameters and gradients.

Usage: python tests/optim/make_golden.py
Every number is an fp32 value, printed so that it reads back exactly. Grad norms and clipping
factors come from torch.nn.utils.clip_grad_norm_.
"""

import json
import random
from pathlib import Path

import torch

NUMEL = 16
STEPS = 12


def values(tensor: torch.Tensor) -> list[float]:
    return tensor.detach().tolist()


def adam_case(rng: random.Random, index: int) -> dict:
    decoupled = index % 2 == 0
    settings = {
        "lr": rng.choice([1e-4, 1e-3, 3e-3, 1e-2]),
        "betas": rng.choice([(0.9, 0.999), (0.9, 0.95), (0.0, 0.5)]),
        "eps": rng.choice([1e-8, 1e-6, 1e-4]),
        "weight_decay": rng.choice([0.0, 0.01, 0.1]),
    }
    parameter = torch.nn.Parameter(torch.randn(NUMEL))
    initial = values(parameter)
    rule = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = rule([parameter], foreach=False, **settings)
    gradient_size = rng.choice([1e-3, 1.0, 30.0])
    gradients = []
    for _ in range(STEPS):
        parameter.grad = torch.randn(NUMEL) * gradient_size
        gradients.append(values(parameter.grad))
        optimizer.step()
    state = optimizer.state[parameter]
    return {
        "decoupled": decoupled,
        **settings,
        "initial": initial,
        "gradients": gradients,
        "param": values(parameter),
        "exp_avg": values(state["exp_avg"]),
        "exp_avg_sq": values(state["exp_avg_sq"]),
    }


def clip_case(rng: random.Random) -> dict:
    parameter = torch.nn.Parameter(torch.zeros(NUMEL, dtype=torch.float64))
    gradient_size = rng.choice([1e-3, 1.0, 50.0])
    parameter.grad = torch.randn(NUMEL, dtype=torch.float64) * gradient_size
    before = parameter.grad.clone()
    max_norm = rng.choice([0.5, 1.0, 10.0])
    norm = torch.nn.utils.clip_grad_norm_([parameter], max_norm)
    return {
        "norm": norm.item(),
        "max_norm": max_norm,
        "factor": (parameter.grad[0] / before[0]).item(),
    }


def main() -> None:
    rng = random.Random(1)
    torch.manual_seed(1)
    golden = {
        "adam": [adam_case(rng, index) for index in range(10)],
        "clip": [clip_case(rng) for _ in range(12)],
    }
    path = Path(__file__).parent / "data" / "adam_golden.json"
    path.write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
