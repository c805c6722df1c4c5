"""Goes on from step 4's checkpoint on one rank instead of two and at another stage.

zerorun --num_gpus 1 step5_resume.py
"""

import torch
import zerorun
from gpt import GPT, batches

model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
engine = zerorun.shard(model, stage=2, optimizer=optimizer)
rank = engine.communicator.rank
data = batches(rank + 100, steps=10)
_, state = engine.load_checkpoint("checkpoints")
for step, batch in enumerate(data, start=state["step"]):
    loss = model(batch.to(engine.device))
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 5 == 4:
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
engine.save_checkpoint("checkpoints", client_state={"step": state["step"] + len(data)})
