"""Writes data/rules_golden.json again: what reference optimizers do with settings and gradients.

Usage: python tests/zero/make_golden.py
The cases are those of the file itself, where a new one is {"type": ..., "settings": ..., "shapes":
[...]}; weights and gradients that it lacks are drawn. All of it in float64, from numbers that fp32
holds exactly. SGD, Adagrad, Adam, AdamW and Muon are PyTorch's, Muon without its rounding to
bfloat16; Lion is algorithm 2 of Chen et al. 2023; Lamb is the arithmetic of DeepSpeed 0.19's
fused_lamb_cuda_kernel.cu. Also norms and clipping factors of torch.nn.utils.clip_grad_norm_.
"""

import json
from pathlib import Path

import torch

STEPS = 5
torch.set_default_dtype(torch.float64)
# Newton-Schulz in the dtype of the gradient.
torch.Tensor.bfloat16 = lambda tensor: tensor


def drawn(shapes: list[list[int]]) -> list[list[float]]:
    return [torch.randn(shape).float().double().flatten().tolist() for shape in shapes]


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


def rule_of(case: dict, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    own = {"Lion": Lion, "Lamb": Lamb}.get(case["type"])
    if own:
        return own(parameters, case["settings"])
    return getattr(torch.optim, case["type"])(parameters, **case["settings"])


def run(case: dict) -> dict:
    shapes = case["shapes"]
    initial = case.setdefault("initial", drawn(shapes))
    gradients = case.setdefault("gradients", [drawn(shapes) for _ in range(STEPS)])
    parameters = [
        torch.nn.Parameter(torch.tensor(values).view(shape))
        for values, shape in zip(initial, shapes, strict=True)
    ]
    optimizer = rule_of(case, parameters)
    for step in gradients:
        for parameter, values in zip(parameters, step, strict=True):
            parameter.grad = torch.tensor(values).view_as(parameter)
        optimizer.step()
    return case | {"final": [parameter.detach().flatten().tolist() for parameter in parameters]}


def clip(case: dict) -> dict:
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.tensor([case["norm"]])
    torch.nn.utils.clip_grad_norm_([parameter], case["max_norm"])
    return case | {"factor": parameter.grad.item() / case["norm"]}


def main() -> None:
    torch.manual_seed(1)
    path = Path(__file__).parent / "data" / "rules_golden.json"
    golden = json.loads(path.read_text())
    golden["rules"] = [run(case) for case in golden["rules"]]
    golden["clip"] = [clip(case) for case in golden["clip"]]
    path.write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
