"""TRL's trainers on a model that `from_pretrained` loads: of supervised fine-tuning, preferences
(whose reference model is a second engine), group relative policies, reward models and KTO."""

from typing import Any

import trl
from datasets import Dataset
from peft import LoraConfig
from program import Figures, history, trainer_arguments
from tiny import save_llama, sentence, tokenizer


def rows(names: str) -> Dataset:
    """Prompts, good and bad answers, and whether an answer is good."""
    found = []
    for at in range(32):
        prompt, good, bad = sentence(at, 4), " " + sentence(at, 9), " w1 w1 w2"
        answer = good if at % 2 == 0 else bad
        row = {"prompt": prompt, "chosen": good, "rejected": bad}
        found.append(row | {"completion": answer, "label": at % 2 == 0})
    return Dataset.from_list([{name: row[name] for name in names.split()} for row in found])


def reward(completions: list[str], **_: object) -> list[float]:
    """How much of a completion are words with an even number."""
    words = [[int(w[1:]) for w in text.split() if w[1:].isdigit()] for text in completions]
    return [sum(w % 2 == 0 for w in found) / max(1, len(found)) for found in words]


def supervised(given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the configuration, and of the trainer."""
    data = Dataset.from_list([{"text": sentence(number)} for number in range(64)])
    changes = {"max_length": 32, "eval_strategy": "steps", "eval_steps": 4, "packing": False}
    return changes, {"train_dataset": data, "eval_dataset": data.select(range(8))}


def preferences(given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    changes = {"max_length": 32, "learning_rate": 1e-3}
    return changes, {"train_dataset": rows("prompt chosen rejected")}


def policies(given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    changes = {"max_steps": 4, "learning_rate": 1e-3, "num_generations": 4, "beta": 0.1}
    changes |= {"per_device_eval_batch_size": 4, "max_completion_length": 8}
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    own = {"reward_funcs": reward, "peft_config": lora if "lora" in given.words else None}
    return changes, own | {"train_dataset": rows("prompt")}


def others(given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    columns = "chosen rejected" if "reward" in given.words else "prompt completion label"
    return {"max_steps": 5, "learning_rate": 1e-3}, {"train_dataset": rows(columns)}


# Its name in TRL, its settings, and what is compared beside losses and norms.
TRAINERS = {
    "sft": ("SFT", supervised, ["eval_loss"]),
    "dpo": ("DPO", preferences, ["rewards/margins"]),
    "grpo": ("GRPO", policies, ["reward", "kl"]),
    "reward": ("Reward", others, []),
    "kto": ("KTO", others, []),
}


def figures(given: Any) -> Figures:
    name, settings, more = TRAINERS[given.words[0]]
    changes, own = settings(given)
    arguments = getattr(trl, f"{name}Config")(**trainer_arguments(given, **changes))
    shared = {"model": save_llama(), "args": arguments, "processing_class": tokenizer()}
    trainer = getattr(trl, f"{name}Trainer")(**shared, **own)
    trainer.train()
    return history(trainer, ("loss", "grad_norm", *more))
