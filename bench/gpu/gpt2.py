"""GPT-2 as a PyTorch user would write it for speed; `train` has the same arithmetic."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

# Layers, width, heads.
SHAPES = {"nano": (4, 128, 4), "gpt2": (12, 768, 12), "gpt2-xl": (48, 1600, 25)}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward_in = nn.Linear(width, 4 * width)
        self.feed_forward_out = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(attended.transpose(1, 2).reshape(batch, length, width))
        inner = F.gelu(self.feed_forward_in(self.feed_forward_norm(x)), approximate="tanh")
        return x + self.feed_forward_out(inner)


class Gpt2(nn.Module):
    def __init__(self, shape: str, vocabulary: int, positions: int) -> None:
        super().__init__()
        layers, width, heads = SHAPES[shape]
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)  # also the head
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
