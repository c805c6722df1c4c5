"""A Hugging Face Trainer script as it is written for DeepSpeed: nothing here knows zerorun.

zerorun --num_gpus 2 trainer.py --deepspeed ds_config_stage3.json --output_dir out
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments

BLOCK = 64


class Bytes(torch.utils.data.Dataset):
    """The Python library's source text, in blocks of bytes."""

    def __init__(self, blocks: int = 256) -> None:
        library = Path(sysconfig.get_path("stdlib"))
        text = b"".join(path.read_bytes() for path in sorted(library.glob("*.py"))[:40])
        data = torch.tensor(list(text[: blocks * BLOCK]))
        self.blocks = data[: len(data) // BLOCK * BLOCK].view(-1, BLOCK)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.blocks[index], "labels": self.blocks[index]}


def main() -> None:
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    config = GPT2Config(
        vocab_size=256, n_positions=BLOCK, n_embd=64, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    torch.manual_seed(arguments.seed)
    trainer = Trainer(
        model=GPT2LMHeadModel(config), args=arguments, train_dataset=Bytes(), eval_dataset=Bytes(16)
    )
    result = trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    trainer.save_model()
    if trainer.is_world_process_zero():
        print(f"train_loss {result.training_loss:.4f}")
    print(f"eval_loss {trainer.evaluate()['eval_loss']:.4f}")


if __name__ == "__main__":
    main()
