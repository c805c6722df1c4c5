"""What the cases of models that are divided among ranks share."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
import zerorun
from torch import nn

from cases.models import mean

CLIP = 0.05  # below the gradient's norm

# The loss of a step's data: of all of it, or of this rank's rows.
LossAt = Callable[[nn.Module, int], torch.Tensor]


def squared_errors(
    data_of: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
) -> tuple[LossAt, LossAt]:
    """Of all of a step's rows, and of those of an engine's data-parallel rank."""

    def whole(model: nn.Module, step: int) -> torch.Tensor:
        x, y = data_of(step)
        return F.mse_loss(model(x), y)

    def own(engine: nn.Module, step: int) -> torch.Tensor:
        ranks = engine.communicator
        x, y = (part.chunk(ranks.world_size)[ranks.rank] for part in data_of(step))
        return F.mse_loss(engine(x), y)

    return whole, own


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)


def train_whole(model: nn.Module, loss_at: LossAt, steps: int) -> list[float]:
    """Each step's loss and gradient norm in one process."""
    optimizer, figures = adamw(model), []
    for step in range(steps):
        loss = loss_at(model, step)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        figures += [loss.item(), norm.item()]
    return figures


def train_divided(
    engine: zerorun.ZeroEngine, loss_at: LossAt, steps: int, first: int
) -> list[float]:
    """The same of an engine, from step `first` on."""
    figures = []
    for step in range(first, first + steps):
        loss = loss_at(engine, step)
        engine.backward(loss)
        engine.step()
        figures += [mean(loss.detach(), engine), engine.get_global_grad_norm()]
    return figures
