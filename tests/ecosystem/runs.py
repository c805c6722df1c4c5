"""The runs whose losses are compared with DeepSpeed's: programs, their options, what they need."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
RANKS = 2

# The packages without which a program is left out.
PACKAGES = {
    "hf_trainer": ("transformers", "accelerate"),
    "trl_sft": ("trl", "datasets"),
    "trl_dpo": ("trl", "datasets"),
    "trl_grpo": ("trl", "datasets", "peft"),
    "accelerate_nlp": ("transformers", "accelerate"),
    "moe": ("transformers",),
}

# The options of every run, by program and by the run's name. What trains in bf16 says so there.
RUNS = {
    "hf_trainer": {
        "stage2": "--stage 2",
        "stage3": "--stage 3",
    },
    "trl_sft": {"stage2-bf16": "--stage 2 --bf16", "stage3": "--stage 3"},
    "trl_dpo": {"stage2": "--stage 2", "stage3": "--stage 3"},
    "trl_grpo": {"stage2": "--stage 2", "stage3-lora": "--stage 3 --lora"},
    "accelerate_nlp": {
        "stage2-bf16": "--stage 2 --bf16",
        "stage3": "--stage 3",
    },
    "moe": {
        "mixtral-stage3": "--stage 3 --model mixtral",
        "mixtral-stage3-bf16": "--stage 3 --model mixtral --bf16",
        "qwen2-stage3": "--stage 3 --model qwen2_moe",
        "deepseek-stage3": "--stage 3 --model deepseek_v3",
        "deepseek-stage3-bf16": "--stage 3 --model deepseek_v3 --bf16",
    },
}


def golden(program: str) -> dict[str, dict[str, list[float]]]:
    """The figures of a program's runs under DeepSpeed."""
    return json.loads((GOLDEN / f"{program}.json").read_text())["runs"]
