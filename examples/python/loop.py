"""A plain PyTorch loop, sharded: only the four lines with zerorun differ.

zerorun --num_gpus 2 loop.py --stage 3
"""

import argparse
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
import zerorun
from torch import nn

BLOCK, WIDTH, STEPS = 64, 64, 30


class Model(nn.Module):
    """A small transformer over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(256, WIDTH), nn.Embedding(BLOCK, WIDTH)
        options = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        layers = (nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, **options) for _ in range(2))
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x)


parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--local_rank", type=int, default=0)
stage = parser.parse_args().stage
files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:20]
data = b"".join(path.read_bytes() for path in files)[: 512 * (BLOCK + 1)]
text = torch.tensor(list(data)).view(-1, BLOCK + 1)

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}}
model, _, loader, _ = zerorun.initialize(model, optimizer, training_data=text, config=config)
for step, batch in zip(range(STEPS), loader, strict=False):
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    model.backward(loss)
    model.step()
    if step % 10 == 0 or step == STEPS - 1:
        total = loss.detach().clone()
        model.communicator.all_reduce(total)
        if model.communicator.rank == 0:
            print(f"step {step} loss {total.item() / model.communicator.world_size:.4f}")
model.destroy()
