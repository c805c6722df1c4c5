"""Lightning's fit, validate and test of one module, with its DeepSpeedStrategy."""

from typing import Any

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy
from program import Figures, OnCpus, mean
from tiny import shared_folder
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Batch = tuple[torch.Tensor, torch.Tensor]


class OnCpu(OnCpus, DeepSpeedStrategy):
    any_device = DDPStrategy

    def setup_distributed(self) -> None:
        self.set_world_ranks()
        self._init_deepspeed_distributed()


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU())
        self.head = nn.Linear(32, 1)
        self.figures: Figures = {"loss": [], "grad_norm": []}

    def error(self, batch: Batch) -> torch.Tensor:
        x, y = batch
        return F.mse_loss(self.head(self.net(x)).float(), y)

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        loss = self.error(batch)
        self.figures["loss"].append(mean(loss))
        return loss

    def on_train_batch_end(self, *_: object) -> None:
        self.figures["grad_norm"].append(mean(self.trainer.model.get_global_grad_norm()))

    def validation_step(self, batch: Batch, _: int) -> None:
        self.log("val_loss", self.error(batch), sync_dist=True)

    def test_step(self, batch: Batch, index: int) -> None:
        self.log("test_loss", self.error(batch), sync_dist=True)

    def predict_step(self, batch: Batch, _: int) -> torch.Tensor:
        return self.head(self.net(batch[0]))

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def make_trainer(given: Any, **changes: Any) -> lightning.Trainer:
    settings = {"max_epochs": 2, "enable_checkpointing": False} | changes
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    return lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=OnCpu(stage=given.stage),
        precision="bf16-true" if given.bf16 else "32-true",
        gradient_clip_val=0.5,
        default_root_dir=shared_folder(),
        **(quiet | settings),
    )


def restored(given: Any, loader: DataLoader) -> Figures:
    """Figures of a checkpoint that is tested, and trained on by another module."""
    module, folder = Regression(), shared_folder()
    saver = ModelCheckpoint(dirpath=folder, save_last=True)
    trainer = make_trainer(given, callbacks=[saver], enable_checkpointing=True)
    trainer.fit(module, loader)
    path = saver.last_model_path
    figures = {"restored": [trainer.test(module, loader, path, verbose=False)[0]["test_loss"]]}
    module = Regression()
    make_trainer(given, max_epochs=3).fit(module, loader, ckpt_path=path)
    return figures | {f"restored_{name}": values for name, values in module.figures.items()}


def figures(given: Any) -> Figures:
    lightning.seed_everything(0)
    x = torch.randn(64, 8)
    loader = DataLoader(TensorDataset(x, x[:, :1] * x[:, 1:2]), batch_size=4)
    if "restored" in given.words:
        return restored(given, loader)
    module = Regression()
    trainer = make_trainer(given)
    trainer.fit(module, loader, loader)
    found = dict(module.figures)
    found["val_loss"] = [trainer.validate(module, loader, verbose=False)[0]["val_loss"]]
    found["test_loss"] = [trainer.test(module, loader, verbose=False)[0]["test_loss"]]
    found["predicted"] = [mean(torch.cat(trainer.predict(module, loader)).abs().mean())]
    return found
