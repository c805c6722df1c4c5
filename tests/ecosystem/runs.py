"""The runs whose losses are compared with DeepSpeed's."""

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
RANKS = 2

# By program: the packages without which it is left out, and the runs, whose names say what is run:
# see program.py. At stage 3 DeepSpeed itself fails for restored, and OpenRLHF needs an older
# transformers.
PROGRAMS = {
    "hf_trainer": ("transformers accelerate", "stage2 stage3 stage3-reentrant-bf16"),
    "hf_classifier": ("transformers accelerate", "stage2 stage3"),
    "ulysses_trainer": ("transformers accelerate", "stage3"),
    "trl_trainers": (
        "trl datasets peft",
        "sft-stage2-bf16 sft-stage3 dpo-stage2 dpo-stage3 grpo-stage2 grpo-stage3-lora"
        " reward-stage3 kto-stage3",
    ),
    "accelerate_nlp": ("transformers accelerate", "stage1 stage2-bf16 stage3"),
    "lightning_fit": ("lightning", "stage2 stage2-restored stage3 stage3-bf16"),
    "lightning_fabric": ("lightning", "stage2 stage3 stage3-bf16"),
    "mmengine_runner": ("mmengine", "stage1 stage3"),
    "megatron_loop": ("", "stage1-bf16 stage3"),
    "diffusers_unet": ("diffusers", "stage3 stage3-bf16"),
    "moe": (
        "transformers",
        "mixtral-stage3 mixtral-stage3-bf16 qwen2-stage3 deepseek-stage3 deepseek-stage3-bf16",
    ),
    "openrlhf_strategy": ("openrlhf torchdata", "stage2-bf16"),
    "llamafactory_sft": ("llamafactory trl", "stage2 stage3-lora"),
}
PACKAGES = {program: packages.split() for program, (packages, _) in PROGRAMS.items()}
RUNS = {program: runs.split() for program, (_, runs) in PROGRAMS.items()}


def golden(program: str) -> dict[str, dict[str, list[float]]]:
    """The figures of those of a program's runs that were recorded under DeepSpeed, by run."""
    file = GOLDEN / f"{program}.json"
    return json.loads(file.read_text())["runs"] if file.exists() else {}
