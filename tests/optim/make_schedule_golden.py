"""Writes data/schedule_golden.json again: what the schedules of DeepSpeed and Hugging Face set.

Usage: DS_ACCELERATOR=cpu python tests/optim/make_schedule_golden.py
Needs deepspeed and transformers. The schedulers are those of the file itself, where a new case is
{"scheduler": {"type": ..., "params": ...}, "base_lrs": [...]}. "lr" holds, for each of "steps", one
value per parameter group: what the optimizer uses after that many applied steps. "betas" likewise
where they are set.
"""

import json
from pathlib import Path

import deepspeed
import torch
import transformers
from deepspeed.runtime import lr_schedules
from transformers import optimization

STEPS = 10_000


def hugging_face(optimizer: torch.optim.Optimizer, kind: str, params: dict) -> object:
    warmup = params.get("warmup_num_steps", 0)
    if kind == "constant":
        return optimization.get_constant_schedule_with_warmup(optimizer, warmup)
    total = params["total_num_steps"]
    ratio = {"min_lr_ratio": params["min_lr_ratio"]} if "min_lr_ratio" in params else {}
    if kind == "linear":
        return optimization.get_linear_schedule_with_warmup(optimizer, warmup, total)
    if kind == "WSD":
        decay, shape = params["decay_num_steps"], params["decay_type"]
        return optimization.get_wsd_schedule(
            optimizer, warmup, decay, total, decay_type=shape, **ratio
        )
    if not ratio:
        return optimization.get_cosine_schedule_with_warmup(optimizer, warmup, total)
    return optimization.get_cosine_with_min_lr_schedule_with_warmup(
        optimizer, warmup, total, min_lr_rate=params["min_lr_ratio"]
    )


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


def run(scheduler: dict, base_lrs: list[float]) -> dict:
    kind, params = scheduler["type"], scheduler["params"]
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in base_lrs]
    optimizer = torch.optim.AdamW(groups)
    is_deepspeeds = kind in lr_schedules.VALID_LR_SCHEDULES
    if is_deepspeeds:
        schedule = getattr(lr_schedules, kind)(optimizer, **params)
    else:
        schedule = hugging_face(optimizer, kind, params)
    case = {"scheduler": scheduler, "base_lrs": base_lrs, "steps": sampled_steps(params), "lr": []}
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
    if is_deepspeeds:
        case["state_dict"] = schedule.state_dict()
    return case


def main() -> None:
    path = Path(__file__).parent / "data" / "schedule_golden.json"
    known = json.loads(path.read_text())["cases"]
    lines = [json.dumps(run(case["scheduler"], case["base_lrs"])) for case in known]
    versions = {"deepspeed": deepspeed.__version__, "transformers": transformers.__version__}
    start = json.dumps({"made_with": versions, "cases": []})[:-2]
    path.write_text(start + "\n" + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
