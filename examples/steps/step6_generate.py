"""Exports step 5's model for Hugging Face and continues a text with transformers.

zerorun ckpt export checkpoints model --to safetensors
python step6_generate.py

Needs transformers. After 30 steps the model continues with little but blanks.
"""

import torch
from gpt import BLOCK, HEADS, LAYERS, WIDTH
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(
    vocab_size=256, n_positions=BLOCK, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
    bos_token_id=0, eos_token_id=0,
)  # fmt: skip
config.save_pretrained("model")
model = GPT2LMHeadModel.from_pretrained("model")
prompt = torch.tensor([list(b"def add_argument(self, ")])
with torch.no_grad():
    tokens = model.generate(prompt, max_new_tokens=30, do_sample=False, pad_token_id=0)
print(bytes(tokens[0].tolist()).decode(errors="replace"))
