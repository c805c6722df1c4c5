"""Lightning Fabric with its DeepSpeedStrategy: a loop of one's own that saves and loads."""

from typing import Any

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy, DeepSpeedStrategy
from program import Figures, OnCpus, mean
from tiny import shared_folder
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class OnCpu(OnCpus, DeepSpeedStrategy):
    any_device = DDPStrategy

    def _setup_distributed(self) -> None:
        self._set_world_ranks()
        self._init_deepspeed_distributed()
        if not self._config_initialized:
            self._format_config()
            self._config_initialized = True


def figures(given: Any) -> Figures:
    strategy = OnCpu(stage=given.stage)
    strategy.config["gradient_clipping"] = 0.5
    precision = "bf16-true" if given.bf16 else "32-true"
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy, precision=precision)
    fabric.launch()
    fabric.seed_everything(0)
    with fabric.init_module():  # zero.Init at stage 3
        module = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 1))
    model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=1e-2))
    random = torch.Generator().manual_seed(1)
    x = torch.randn(64, 8, generator=random)
    rows = DataLoader(TensorDataset(x, x[:, :1] * x[:, 1:2]), batch_size=4)
    loader = fabric.setup_dataloaders(rows)
    found: Figures = {"loss": [], "eval_loss": []}

    def evaluate() -> float:
        model.eval()
        with torch.no_grad():
            losses = [F.mse_loss(model(x).float(), y) for x, y in loader]
        model.train()
        return fabric.all_reduce(torch.stack(losses).mean(), reduce_op="mean").item()

    def train() -> None:
        for x, y in loader:
            loss = F.mse_loss(model(x).float(), y)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            found["loss"].append(mean(loss))
        found["eval_loss"].append(evaluate())

    folder = shared_folder()
    state = {"model": model, "optimizer": optimizer, "epoch": 1, "settings": {"lr": 1e-2}}
    train()
    fabric.save(folder, state)
    train()
    state |= {"epoch": 0, "settings": {}}
    fabric.load(folder, state)
    found["eval_loss"].append(evaluate())
    found["state"] = [float(state["epoch"]), state["settings"]["lr"]]
    train()
    return found
