"""A small GPT-2 over bytes for the steps of this folder; parameters have Hugging Face's names."""

import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, LAYERS, BLOCK = 64, 4, 2, 64


class Linear(nn.Module):
    """GPT-2 stores the weights of its linear layers as [in, out]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.02)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        parts = {"c_attn": Linear(WIDTH, 3 * WIDTH), "c_proj": Linear(WIDTH, WIDTH)}
        self.attn = nn.ModuleDict(parts)
        parts = {"c_fc": Linear(WIDTH, 4 * WIDTH), "c_proj": Linear(4 * WIDTH, WIDTH)}
        self.mlp = nn.ModuleDict(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.attn["c_attn"](self.ln_1(x)).unflatten(-1, (3, HEADS, -1)).movedim(-2, 1)
        attended = F.scaled_dot_product_attention(*heads.unbind(-2), is_causal=True)
        x = x + self.attn["c_proj"](attended.transpose(1, 2).flatten(2))
        hidden = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](hidden)


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)  # the same on every rank
        parts = {"wte": nn.Embedding(256, WIDTH), "wpe": nn.Embedding(BLOCK, WIDTH)}
        blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.transformer = nn.ModuleDict(parts | {"h": blocks, "ln_f": nn.LayerNorm(WIDTH)})
        for embedding in parts.values():
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss of predicting each byte from those before it."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        wte, wpe = self.transformer["wte"], self.transformer["wpe"]
        x = wte(inputs) + wpe(torch.arange(inputs.shape[1], device=inputs.device))
        for block in self.transformer["h"]:
            x = block(x)
        logits = F.linear(self.transformer["ln_f"](x), wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batches(rank: int, steps: int, batch: int = 8) -> list[torch.Tensor]:
    """For each step a batch of blocks of text; other ones on each rank."""
    text = (Path(sysconfig.get_path("stdlib")) / "argparse.py").read_bytes()
    generator = torch.Generator().manual_seed(rank)
    places = torch.randint(len(text) - BLOCK, (steps, batch), generator=generator)
    blocks = [[list(text[at : at + BLOCK]) for at in row] for row in places.tolist()]
    return list(torch.tensor(blocks))
