"""A loop that saves after every step, and loops that go on from each of these checkpoints.

resumed_loop.py FOLDER ACCUMULATION WHICH [HOW/DATA]...: for each, rank 0 writes the (epoch, sample)
that ranks saw up to each step and the weights at the end to FOLDER/HOW/DATA/whole.json and
resumed.json, of which WHICH ("whole", "resumed" or "both") says what is run.
"""

import functools
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import zerorun
from torch import nn
from torch.utils.data import IterableDataset

SAMPLES, WIDTH, MICRO, EPOCHS = 21, 8, 2, 2


def sample(index: int) -> tuple[int, torch.Tensor]:
    return index, torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


class Streamed(IterableDataset):
    """Another order in each epoch, and the names of torch's own example."""

    start, epoch = 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor]]:
        return map(sample, ((index + 7 * self.epoch) % SAMPLES for index in range(SAMPLES)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layers(x) - x.sum(-1, keepdim=True)).square().mean()


def start(how: str, data: str, accumulation: int) -> tuple[Any, Any]:
    dataset = [sample(i) for i in range(SAMPLES)] if data == "listed" else Streamed()
    optimizer = functools.partial(torch.optim.AdamW, lr=0.01)
    if how == "shard":
        options = {"optimizer": optimizer, "clip": 1.0, "accumulation_steps": accumulation}
        engine = zerorun.shard(Model(), stage=3, **options)
        return engine, engine.make_dataloader(dataset, MICRO, num_workers=0)
    config = {"train_micro_batch_size_per_gpu": MICRO, "gradient_accumulation_steps": accumulation}
    config |= {"gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}
    initialize = importlib.import_module({"initialize": "zerorun"}.get(how, how)).initialize
    given = {"optimizer": optimizer, "training_data": dataset, "config": config}
    engine, _, loader, _ = initialize(model=Model(), **given)
    return engine, loader


def train(engine: Any, loader: Any, save: Path | None) -> dict[str, Any]:
    def keep(tag: str) -> None:
        if save is not None:
            engine.save_checkpoint(save, tag=tag, client_state={"loader": loader.state_dict()})

    seen: list[tuple[int, int]] = []
    steps: list[list[tuple[int, int]]] = []
    for epoch in range(loader.epoch, EPOCHS):
        loader.set_epoch(epoch)
        for ids, x in loader:
            if seen:  # in the middle of a batch: its samples count as unseen
                keep(f"inside{len(steps)}")
            engine.backward(engine(x))
            engine.step()
            seen += [(epoch, index) for index in ids.tolist()]
            if engine._micro_step_applied:
                steps.append(seen)
                seen = []
                keep(str(len(steps)))
    gathered = []  # how often all ranks have seen each sample, step by step
    for step in steps:
        own = torch.tensor([epoch * SAMPLES + index for epoch, index in step])
        counts = torch.zeros(EPOCHS * SAMPLES).index_add_(0, own, torch.ones(len(own)))
        engine.communicator.all_reduce(counts, "sum", "samples")
        gathered.append(counts.tolist())
    full = engine.full_state_dict(rank0_only=False)
    weights = {name: value.tolist() for name, value in full.items()}
    return {"own": steps, "steps": gathered, "weights": weights}


def run(how: str, data: str, accumulation: int, folder: Path, *, resumed: bool) -> None:
    runs = {}
    tags = sorted(path.name for path in folder.iterdir() if path.is_dir()) if resumed else ["0"]
    for tag in tags:
        engine, loader = start(how, data, accumulation)
        if resumed:
            _, client_state = engine.load_checkpoint(folder, tag=tag)
            if how == "deepspeed":
                loader.load_state_dict(client_state["loader"])
        runs[tag] = train(engine, loader, None if resumed else folder)
        rank = engine.communicator.rank
        engine.destroy()
    if rank == 0:
        (folder / ("resumed.json" if resumed else "whole.json")).write_text(json.dumps(runs))


def main() -> None:
    place, accumulation, which, *kinds = sys.argv[1:]
    for kind in kinds:
        how, data = kind.split("/")
        for each in ("whole", "resumed") if which == "both" else (which,):
            run(how, data, int(accumulation), Path(place) / kind, resumed=each == "resumed")


if __name__ == "__main__":
    main()
