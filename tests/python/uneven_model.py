"""A model whose sizes divide by nothing: tied, partly frozen, with a buffer and two groups.

Real DeepSpeed and PyTorch trained it to make the checkpoints in data/; zerorun continues them.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 17
BATCH = 6  # rows of a step over all ranks, which 1, 2 and 3 ranks divide
SAVED_AFTER = 3  # steps
CONTINUED = 3  # steps after the save, whose losses the fixtures have


class UnevenModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 7)
        self.first = nn.Linear(7, 11)
        self.second = nn.Linear(11, 7)
        self.fixed = nn.Linear(7, 7)
        self.fixed.requires_grad_(False)
        self.norm = nn.LayerNorm(7)
        self.head = nn.Linear(7, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        values = self.embedding(tokens)
        values = values + self.second(torch.tanh(self.first(values)))
        return self.head(self.norm(values + self.fixed(values)))


def make_model() -> UnevenModel:
    torch.manual_seed(3)
    return UnevenModel()


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Matrices decay, vectors do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    shapes = {p: getattr(p, "ds_shape", p.shape) for p in trained}
    return [
        {"params": [p for p in trained if len(shapes[p]) > 1], "weight_decay": 0.1},
        {"params": [p for p in trained if len(shapes[p]) == 1], "weight_decay": 0.0},
    ]


def rows_of(step: int, rank: int, world_size: int) -> torch.Tensor:
    """A rank's part of a step's batch."""
    generator = torch.Generator().manual_seed(500 + step)
    return torch.randint(0, VOCABULARY, (BATCH, 6), generator=generator).chunk(world_size)[rank]


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1]).float()
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def config_of(stage: int, dtype: str, world_size: int, **zero: Any) -> dict[str, Any]:
    """For DeepSpeed and zerorun alike; torch_adam spares DeepSpeed a compiler."""
    adam = {"lr": 1e-2, "betas": [0.8, 0.95], "eps": 1e-6, "torch_adam": True}
    warmup = {"warmup_max_lr": 1e-2, "warmup_num_steps": 8, "warmup_type": "linear"}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": BATCH // world_size,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 200} | zero,
        "optimizer": {"type": "AdamW", "params": adam},
        "scheduler": {"type": "WarmupLR", "params": warmup},
    }
    if dtype == "bf16":
        config["bf16"] = {"enabled": True}
    if dtype == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 2}
    return config
