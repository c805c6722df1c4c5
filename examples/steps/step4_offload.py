"""Stage 3 with optimizer states in files: the same losses with less memory. Saves a checkpoint.

zerorun --num_gpus 2 step4_offload.py
"""

import sys

import torch
import zerorun
from gpt import GPT, batches

disk = sys.argv[1] if len(sys.argv) > 1 else "."  # a folder on a local disk
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
engine = zerorun.shard(model, stage=3, optimizer=optimizer, offload_optimizer=disk)
rank = engine.communicator.rank
data = batches(rank, steps=20)
for step, batch in enumerate(data):
    loss = model(batch.to(engine.device))
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 5 == 4:
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
engine.save_checkpoint("checkpoints", client_state={"step": len(data)})
