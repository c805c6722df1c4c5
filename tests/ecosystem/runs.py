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
    "hf_classifier": ("transformers", "accelerate"),
    "ulysses_trainer": ("transformers", "accelerate"),
    "trl_sft": ("trl", "datasets"),
    "trl_dpo": ("trl", "datasets"),
    "trl_grpo": ("trl", "datasets", "peft"),
    "trl_others": ("trl", "datasets"),
    "accelerate_nlp": ("transformers", "accelerate"),
    "lightning_fit": ("lightning",),
    "lightning_fabric": ("lightning",),
    "mmengine_runner": ("mmengine",),
    "megatron_loop": (),
    "diffusers_unet": ("diffusers",),
    "moe": ("transformers",),
    "openrlhf_strategy": ("openrlhf", "torchdata"),
    "llamafactory_sft": ("llamafactory", "trl"),
}

# The options of every run, by program and by the run's name. What trains in bf16 says so there.
RUNS = {
    "hf_trainer": {
        "stage2": "--stage 2",
        "stage3": "--stage 3",
        "stage3-reentrant-bf16": "--stage 3 --reentrant --bf16",
    },
    "hf_classifier": {"stage2": "--stage 2", "stage3": "--stage 3"},
    "ulysses_trainer": {"stage3": "--stage 3"},
    "trl_sft": {"stage2-bf16": "--stage 2 --bf16", "stage3": "--stage 3"},
    "trl_dpo": {"stage2": "--stage 2", "stage3": "--stage 3"},
    "trl_grpo": {"stage2": "--stage 2", "stage3-lora": "--stage 3 --lora"},
    "trl_others": {
        "reward-stage3": "--trainer reward --stage 3",
        "kto-stage3": "--trainer kto --stage 3",
    },
    "accelerate_nlp": {
        "stage1": "--stage 1",
        "stage2-bf16": "--stage 2 --bf16",
        "stage3": "--stage 3",
    },
    "lightning_fit": {
        "stage2": "--stage 2",
        "stage2-restored": "--stage 2 --restore",  # at stage 3 DeepSpeed itself fails
        "stage3": "--stage 3",
        "stage3-bf16": "--stage 3 --bf16",
    },
    "lightning_fabric": {
        "stage2": "--stage 2",
        "stage3": "--stage 3",
        "stage3-bf16": "--stage 3 --bf16",
    },
    "mmengine_runner": {"stage1": "--stage 1", "stage3": "--stage 3"},
    "megatron_loop": {"stage1-bf16": "--stage 1 --bf16", "stage3": "--stage 3"},
    "diffusers_unet": {"stage3": "--stage 3", "stage3-bf16": "--stage 3 --bf16"},
    "moe": {
        "mixtral-stage3": "--stage 3 --model mixtral",
        "mixtral-stage3-bf16": "--stage 3 --model mixtral --bf16",
        "qwen2-stage3": "--stage 3 --model qwen2_moe",
        "deepseek-stage3": "--stage 3 --model deepseek_v3",
        "deepseek-stage3-bf16": "--stage 3 --model deepseek_v3 --bf16",
    },
    "openrlhf_strategy": {"stage2-bf16": "--stage 2 --bf16"},  # 3 needs an older transformers
    "llamafactory_sft": {"stage2": "--stage 2", "stage3-lora": "--stage 3 --lora"},
}


def golden(program: str) -> dict[str, dict[str, list[float]]]:
    """The figures of those of a program's runs that were recorded under DeepSpeed, by run."""
    file = GOLDEN / f"{program}.json"
    return json.loads(file.read_text())["runs"] if file.exists() else {}
