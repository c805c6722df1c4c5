"""Writes data/rules_golden.json: what reference optimizers do with random settings and gradients.

Usage: python tests/zero/make_golden.py
All of it in float64, from settings, weights and gradients that fp32 holds exactly. SGD, Adagrad,
Adam, AdamW and Muon are PyTorch's, Muon without its rounding to bfloat16; Lion is algorithm 2 of
Chen et al. 2023; Lamb is the arithmetic of DeepSpeed 0.19's fused_lamb_cuda_kernel.cu. Also norms
and clipping factors of torch.nn.utils.clip_grad_norm_.
"""

import json
import random
from pathlib import Path

import torch

STEPS = 5
torch.set_default_dtype(torch.float64)
# Newton-Schulz in the dtype of the gradient.
torch.Tensor.bfloat16 = lambda tensor: tensor


def fp32(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32).item()


def normal(shape: list[int], size: float) -> torch.Tensor:
    return (torch.randn(shape) * size).float().double()


class Lion(torch.optim.Optimizer):
    def step(self) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                c = beta1 * m + (1 - beta1) * p.grad
                p.data -= group["lr"] * (torch.sign(c) + group["weight_decay"] * p)
                m.copy_(beta2 * m + (1 - beta2) * p.grad)


class Lamb(torch.optim.Optimizer):
    def step(self) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            eps = group["eps"]
            group["step"] = group.get("step", 0) + 1
            step_size = group["lr"]
            if group["bias_correction"]:
                step_size *= (1 - beta2 ** group["step"]) ** 0.5 / (1 - beta1 ** group["step"])
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                v = self.state[p].setdefault("exp_avg_sq", torch.zeros_like(p))
                m.copy_(beta1 * m + (1 - beta1) * p.grad)
                v.copy_(beta2 * v + (1 - beta2) * p.grad * p.grad)
                denominator = (v + eps).sqrt() if group["eps_inside_sqrt"] else v.sqrt() + eps
                update = m / denominator + group["weight_decay"] * p.data
                w_norm, u_norm = p.data.norm(), update.norm()
                ratio = 1.0
                if w_norm != 0 and u_norm != 0:
                    ratio = (w_norm / u_norm).clamp(group["min_coeff"], group["max_coeff"])
                p.data -= step_size * ratio * update


def settings_of(kind: str, rng: random.Random) -> dict:
    settings = {
        "lr": fp32(rng.choice([1e-3, 3e-3, 1e-2])),
        "weight_decay": fp32(rng.choice([0.0, 0.01, 0.1])),
    }
    if kind == "SGD":
        settings["momentum"] = rng.choice([0.0, 0.5, 0.9])
        settings["nesterov"] = settings["momentum"] > 0 and rng.random() < 0.5
        if not settings["nesterov"]:
            settings["dampening"] = rng.choice([0.0, 0.1, 0.5])
    if kind == "Muon":
        settings["momentum"] = rng.choice([0.9, 0.95])
    if kind == "Adagrad":
        settings["eps"] = fp32(rng.choice([1e-10, 1e-6]))
        settings["lr_decay"] = rng.choice([0.0, 0.1])
    if kind in ("Lion", "Lamb"):
        settings["betas"] = rng.choice([(0.9, 0.99), (0.9, 0.999), (0.8, 0.95)])
    if kind in ("Adam", "AdamW"):
        settings["betas"] = rng.choice([(0.9, 0.999), (0.9, 0.95), (0.0, 0.5)])
        settings["eps"] = fp32(rng.choice([1e-8, 1e-6, 1e-4]))
    if kind == "Lamb":
        settings["eps"] = fp32(rng.choice([1e-8, 1e-6]))
        settings["eps_inside_sqrt"] = rng.random() < 0.3
        settings["bias_correction"] = rng.random() < 0.7
        settings["min_coeff"] = fp32(0.01)
        settings["max_coeff"] = fp32(rng.choice([10.0, 0.5]))
    return settings


def case(kind: str, rng: random.Random) -> dict:
    rule = {
        "SGD": torch.optim.SGD,
        "Adagrad": torch.optim.Adagrad,
        "Adam": torch.optim.Adam,
        "AdamW": torch.optim.AdamW,
        "Muon": torch.optim.Muon,
        "Lion": Lion,
        "Lamb": Lamb,
    }[kind]
    settings = settings_of(kind, rng)
    shapes = [[6, 4], [3, 7], [5, 5]] if kind == "Muon" else [[3, 5], [7], [1]]
    # Sizes at which both limits of Lamb's trust ratio are met.
    initial = [normal(shape, rng.choice([1e-3, 0.3, 30.0])) for shape in shapes]
    parameters = [torch.nn.Parameter(value.clone()) for value in initial]
    optimizer = (
        rule(parameters, settings) if kind in ("Lion", "Lamb") else rule(parameters, **settings)
    )
    # The norm of small gradients shows its 1e-7, which PyTorch's Muon takes for a lower limit, but
    # DeepSpeed adds.
    size = rng.choice([1.0, 30.0] if kind == "Muon" else [1e-3, 1.0, 30.0])
    gradients = []
    for _ in range(STEPS):
        step = [normal(shape, size) for shape in shapes]
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        gradients.append([gradient.flatten().tolist() for gradient in step])
        optimizer.step()
    return {
        "type": kind,
        "settings": settings,
        "shapes": shapes,
        "initial": [value.flatten().tolist() for value in initial],
        "gradients": gradients,
        "final": [parameter.detach().flatten().tolist() for parameter in parameters],
    }


def clip_case(rng: random.Random) -> dict:
    parameter = torch.nn.Parameter(torch.zeros(16))
    parameter.grad = torch.randn(16) * rng.choice([1e-3, 1.0, 50.0])
    before = parameter.grad.clone()
    max_norm = rng.choice([0.5, 1.0, 10.0])
    norm = torch.nn.utils.clip_grad_norm_([parameter], max_norm)
    factor = (parameter.grad[0] / before[0]).item()
    return {"norm": norm.item(), "max_norm": max_norm, "factor": factor}


def main() -> None:
    rng = random.Random(1)
    torch.manual_seed(1)
    kinds = ["SGD", "Adagrad", "Lion", "Lamb", "Muon", "Adam", "AdamW"]
    golden = {
        "rules": [case(kind, rng) for kind in kinds for _ in range(10)],
        "clip": [clip_case(rng) for _ in range(12)],
    }
    path = Path(__file__).parent / "data" / "rules_golden.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
