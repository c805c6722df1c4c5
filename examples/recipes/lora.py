"""Fine-tunes a model of Hugging Face in a local folder with LoRA, at stage 3.

zerorun --num_gpus 2 lora.py model text.txt adapter

The frozen model is sharded, and only the adapter is trained and saved. If the folder has
no tokenizer, bytes are the tokens.
"""

import sys
from pathlib import Path

import torch
import zerorun
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from transformers import AutoModelForCausalLM, AutoTokenizer

BLOCK, BATCH, STEPS = 64, 4, 20

folder, text, out = map(Path, sys.argv[1:4])
data = list(text.read_bytes())
if (folder / "tokenizer_config.json").exists():
    data = AutoTokenizer.from_pretrained(folder)(text.read_text())["input_ids"]
blocks = torch.tensor(data[: len(data) // BLOCK * BLOCK]).view(-1, BLOCK)

model = AutoModelForCausalLM.from_pretrained(folder)
torch.manual_seed(0)  # the same adapter on every rank
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-2)
engine = zerorun.shard(model, stage=3, optimizer=optimizer, clip=1.0)
rank = engine.communicator.rank
order = torch.Generator().manual_seed(rank)  # other data on every rank
for step in range(STEPS):
    batch = blocks[torch.randint(len(blocks), (BATCH,), generator=order)].to(engine.device)
    loss = engine(input_ids=batch, labels=batch).loss
    engine.backward(loss)
    engine.step()
    if rank == 0 and step % 10 == 9:
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)

with zerorun.zero.GatheredParameters(trained):
    adapter = {name: value.clone() for name, value in get_peft_model_state_dict(model).items()}
    if rank == 0:
        out.mkdir(parents=True, exist_ok=True)
        torch.save(adapter, out / "adapter_model.bin")
        model.peft_config["default"].save_pretrained(out)
