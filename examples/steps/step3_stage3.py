"""ZeRO stage 3: each rank stores its part of the parameters, gradients and optimizer states.

zerorun --num_gpus 2 step3_stage3.py
"""

import torch
import zerorun
from gpt import GPT, batches

model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
engine = zerorun.shard(model, stage=3, optimizer=optimizer)
rank = engine.communicator.rank
data = batches(rank, steps=20)
for step, batch in enumerate(data):
    loss = model(batch.to(engine.device))
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 5 == 4:
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
