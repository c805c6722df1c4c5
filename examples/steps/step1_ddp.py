"""PyTorch's DistributedDataParallel: every rank has the whole model and all optimizer states.

zerorun --num_gpus 2 step1_ddp.py
"""

import torch
import torch.distributed as dist
from gpt import GPT, batches
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
data = batches(rank, steps=20)
model = DistributedDataParallel(GPT())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step, batch in enumerate(data):
    optimizer.zero_grad()
    loss = model(batch)
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 5 == 4:
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
