"""A plain PyTorch loop, sharded: only the four lines with zerorun differ.

zerorun --num_gpus 2 loop.py --stage 3
"""

from __future__ import annotations

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
        self.token = nn.Embedding(256, WIDTH)
        self.position = nn.Parameter(torch.zeros(BLOCK, WIDTH))
        layer = nn.TransformerEncoderLayer
        self.layers = nn.ModuleList(
            layer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.token(tokens) + self.position[:length]
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x)


def text() -> torch.Tensor:
    library = Path(sysconfig.get_path("stdlib"))
    data = b"".join(path.read_bytes() for path in sorted(library.glob("*.py"))[:20])
    return torch.tensor(list(data[: 512 * (BLOCK + 1)])).view(-1, BLOCK + 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--local_rank", type=int, default=0)
    stage = parser.parse_args().stage

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}}
    model, optimizer, loader, _ = zerorun.initialize(
        model, optimizer, training_data=text(), config=config
    )
    batches = iter(loader)
    for step in range(STEPS):
        batch = next(batches)
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        model.backward(loss)
        model.step()
        if step % 10 == 0 or step == STEPS - 1:
            total = loss.detach().clone()
            model.communicator.all_reduce(total)
            if model.communicator.rank == 0:
                print(f"step {step} loss {total.item() / model.communicator.world_size:.4f}")
    model.destroy()


if __name__ == "__main__":
    main()
