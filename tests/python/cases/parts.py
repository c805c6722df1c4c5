"""What the cases of models that are divided among ranks share."""

from cases.models import *

CLIP = 0.05  # below the gradient's norm

DataOf = Callable[[int], tuple[torch.Tensor, torch.Tensor]]


def config(samples: int, stage: int, **keys: Any) -> dict[str, Any]:
    """Of as many samples for each data-parallel rank."""
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 2000}
    keys = {"train_micro_batch_size_per_gpu": samples, "gradient_clipping": CLIP} | keys
    return {"zero_optimization": zero, "zerorun": {"comm_timeout": 30}} | keys


def random_rows(first: int, rows: int, width: int) -> DataOf:
    """Inputs and targets of a step."""

    def data_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(first + step)
        return tuple(torch.randn(rows, width, generator=generator) for _ in range(2))

    return data_of


def squared_errors(data_of: DataOf) -> tuple[LossAt, LossAt]:
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


def trainer(loss_at: LossAt, all_steps: int) -> Callable[..., list[float]]:
    """The same of an engine, from step `first` on."""

    def train(engine: zerorun.ZeroEngine, steps: int = all_steps, first: int = 0) -> list[float]:
        figures = []
        for step in range(first, first + steps):
            loss = loss_at(engine, step)
            engine.backward(loss)
            engine.step()
            figures += [mean(loss.detach(), engine), engine.get_global_grad_norm()]
        return figures

    return train
