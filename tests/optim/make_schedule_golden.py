"""Writes data/schedule_golden.json: what the schedules of DeepSpeed and Hugging Face set.

Usage: DS_ACCELERATOR=cpu python tests/optim/make_schedule_golden.py
Needs deepspeed and transformers. "lr" holds, for each of "steps", one value per parameter group:
what the optimizer uses after that many applied steps. "betas" likewise where they are set.
"""

import json
from pathlib import Path

import deepspeed
import torch
import transformers
from deepspeed.runtime import lr_schedules
from transformers import optimization

STEPS = 10_000
BASE_LRS = [3e-4, 1e-2]

DEEPSPEED = [
    ("WarmupLR", {}),
    ("WarmupLR", {"warmup_min_lr": [1e-5, 1e-4], "warmup_max_lr": [2e-3, 3e-3]}),
    ("WarmupLR", {"warmup_max_lr": 0.02, "warmup_num_steps": 1, "warmup_type": "linear"}),
    ("WarmupDecayLR", {"total_num_steps": 9000}),
    (
        "WarmupDecayLR",
        {
            "total_num_steps": 7001,
            "warmup_num_steps": 333,
            "warmup_type": "linear",
            "warmup_min_lr": 1e-6,
            "warmup_max_lr": [5e-4, 6e-4],
        },
    ),
    ("WarmupDecayLR", {"total_num_steps": 20, "warmup_num_steps": 20}),
    ("WarmupCosineLR", {"total_num_steps": 9500}),
    (
        "WarmupCosineLR",
        {
            "total_num_steps": 5000,
            "warmup_min_ratio": 0.1,
            "warmup_num_steps": 100,
            "cos_min_ratio": 0.05,
            "warmup_type": "linear",
        },
    ),
    ("LRRangeTest", {}),
    (
        "LRRangeTest",
        {
            "lr_range_test_min_lr": [1e-5, 1e-6],
            "lr_range_test_step_size": 37,
            "lr_range_test_step_rate": 0.5,
            "lr_range_test_staircase": True,
        },
    ),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2}),
    (
        "OneCycle",
        {
            "cycle_min_lr": [1e-4, 2e-4],
            "cycle_max_lr": [1e-2, 2e-2],
            "cycle_first_step_size": 1000,
            "cycle_second_step_size": 2500,
            "decay_step_size": 100,
            "decay_lr_rate": 0.3,
            "decay_mom_rate": 0.0005,
            "cycle_min_mom": 0.85,
            "cycle_max_mom": [0.95, 0.9],
        },
    ),
    (
        "OneCycle",
        {
            "cycle_min_lr": 1e-4,
            "cycle_max_lr": 1e-2,
            "cycle_first_step_size": 700,
            "cycle_second_step_size": 1300,
            "cycle_first_stair_count": 7,
            "cycle_second_stair_count": 11,
            "cycle_momentum": False,
            "decay_step_size": 50,
            "decay_lr_rate": 1.0,
        },
    ),
    ("WarmupLR", {"warmup_num_steps": 50, "last_batch_iteration": 20}),
]

HUGGING_FACE = [
    (
        "cosine",
        {"total_num_steps": 8000, "warmup_num_steps": 200, "min_lr_ratio": 0.1},
        lambda optimizer: optimization.get_cosine_with_min_lr_schedule_with_warmup(
            optimizer, 200, 8000, min_lr_rate=0.1
        ),
    ),
    (
        "cosine",
        {"total_num_steps": 10_000},
        lambda optimizer: optimization.get_cosine_schedule_with_warmup(optimizer, 0, 10_000),
    ),
    (
        "linear",
        {"total_num_steps": 9000, "warmup_num_steps": 1000},
        lambda optimizer: optimization.get_linear_schedule_with_warmup(optimizer, 1000, 9000),
    ),
    (
        "constant",
        {"warmup_num_steps": 500},
        lambda optimizer: optimization.get_constant_schedule_with_warmup(optimizer, 500),
    ),
    *(
        (
            "WSD",
            {
                "total_num_steps": 9900,
                "warmup_num_steps": 100,
                "decay_num_steps": 2000,
                "decay_type": shape,
                "min_lr_ratio": 0.05,
            },
            lambda optimizer, shape=shape: optimization.get_wsd_schedule(
                optimizer, 100, 2000, 9900, decay_type=shape, min_lr_ratio=0.05
            ),
        )
        for shape in ("linear", "cosine", "1-sqrt")
    ),
]


def make_optimizer() -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in BASE_LRS]
    return torch.optim.AdamW(groups)


def sampled_steps(params: dict) -> list[int]:
    """Some of all, and those around every length in the parameters."""
    steps = {*range(5), *range(17, STEPS, 331), STEPS}
    cycle = params.get("cycle_first_step_size", 2000)
    lengths = [value for value in params.values() if isinstance(value, int)]
    lengths += [1000, cycle, cycle + params.get("cycle_second_step_size", cycle)]
    if "decay_num_steps" in params:
        lengths.append(params["total_num_steps"] - params["decay_num_steps"])
    for length in lengths:
        steps.update(range(length - 2, length + 4))
    return sorted(step for step in steps if 0 <= step <= STEPS)


def run(schedule: object, optimizer: torch.optim.Optimizer, kind: str, params: dict) -> dict:
    case = {"scheduler": {"type": kind, "params": params}, "base_lrs": BASE_LRS}
    case |= {"steps": sampled_steps(params), "lr": []}
    if kind == "OneCycle" and params.get("cycle_momentum", True):
        case["betas"] = []
    if kind == "cosine":  # Hugging Face's rises again after its end
        case["steps"] = [step for step in case["steps"] if step <= params["total_num_steps"]]
    wanted = set(case["steps"])
    for step in range(STEPS + 1):
        if step in wanted:
            case["lr"].append([float(group["lr"]) for group in optimizer.param_groups])
            if "betas" in case:
                case["betas"].append([list(group["betas"]) for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    if kind in lr_schedules.VALID_LR_SCHEDULES:
        case["state_dict"] = schedule.state_dict()
    return case


def main() -> None:
    cases = []
    for kind, params in DEEPSPEED:
        optimizer = make_optimizer()
        cases.append(run(getattr(lr_schedules, kind)(optimizer, **params), optimizer, kind, params))
    for kind, params, make in HUGGING_FACE:
        optimizer = make_optimizer()
        cases.append(run(make(optimizer), optimizer, kind, params))
    path = Path(__file__).parent / "data" / "schedule_golden.json"
    versions = {"deepspeed": deepspeed.__version__, "transformers": transformers.__version__}
    with path.open("w") as file:
        file.write(json.dumps({"made_with": versions, "cases": []})[:-2])
        file.write(",\n".join("\n" + json.dumps(case) for case in cases).replace(",\n\n", ",\n"))
        file.write("\n]}\n")


if __name__ == "__main__":
    main()
