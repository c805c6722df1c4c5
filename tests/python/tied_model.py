"""A small model with tied embeddings, which needs PyTorch only."""

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 50


class Block(nn.Module):
    def __init__(self, width: int, hidden: int = 0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden or 4 * width)
        self.down = nn.Linear(hidden or 4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Tied embeddings around a list of blocks."""

    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
