"""A Hugging Face Trainer script for DeepSpeed that does not mention zerorun.

zerorun --num_gpus 2 trainer.py --deepspeed ds_config_stage3.json --output_dir out
"""

import os
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments

BLOCK = 64


@dataclass
class DataArguments:
    text: str = field(
        default=os.path.join(sysconfig.get_path("stdlib"), "argparse.py"),
        metadata={"help": "A text file."},
    )


class Bytes(torch.utils.data.Dataset):
    """A text file in blocks of bytes."""

    def __init__(self, text: str, blocks: int = 256) -> None:
        data = torch.tensor(list(Path(text).read_bytes()[: blocks * BLOCK]))
        self.blocks = data[: len(data) // BLOCK * BLOCK].view(-1, BLOCK)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.blocks[index], "labels": self.blocks[index]}


parser = HfArgumentParser([TrainingArguments, DataArguments])
# Without this the Trainer would treat each CPU rank as a job of its own.
parser.set_defaults(use_cpu=not torch.cuda.is_available())
arguments, data = parser.parse_args_into_dataclasses()
config = GPT2Config(
    vocab_size=256, n_positions=BLOCK, n_embd=64, n_layer=2, n_head=2, bos_token_id=0,
    eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
)  # fmt: skip
torch.manual_seed(arguments.seed)
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=arguments,
    train_dataset=Bytes(data.text),
    eval_dataset=Bytes(data.text, blocks=16),
)
result = trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
trainer.save_model()
if trainer.is_world_process_zero():
    print(f"train_loss {result.training_loss:.4f}")
print(f"eval_loss {trainer.evaluate()['eval_loss']:.4f}")
