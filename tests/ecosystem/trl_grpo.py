"""TRL's group relative policy optimization: with a reference engine, or of LoRA alone."""

from __future__ import annotations

from datasets import Dataset
from peft import LoraConfig
from program import history, start, trainer_arguments, write
from tiny import save_llama, sentence, tokenizer
from trl import GRPOConfig, GRPOTrainer


def reward(completions: list[str], **_: object) -> list[float]:
    """How much of a completion are words with an even number."""
    words = [[int(w[1:]) for w in text.split() if w[1:].isdigit()] for text in completions]
    return [sum(w % 2 == 0 for w in found) / max(1, len(found)) for found in words]


def main() -> None:
    given = start()
    arguments = GRPOConfig(
        **trainer_arguments(given, max_steps=4, learning_rate=1e-3),
        num_generations=4,
        per_device_eval_batch_size=4,
        max_completion_length=8,
        beta=0.1,
    )
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    trainer = GRPOTrainer(
        model=save_llama(),
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": sentence(at, 4)} for at in range(32)]),
        processing_class=tokenizer(),
        peft_config=lora if given.lora else None,
    )
    trainer.train()
    write(given, history(trainer, ("loss", "grad_norm", "reward", "kl")))


if __name__ == "__main__":
    main()
