"""Hugging Face's Trainer, or a loop with accelerate, stops after every step and resumes.

The uninterrupted run saves after each of its steps, and from each of these checkpoints a new run
goes on: in the same job, or, with --first and --rest, in jobs of different sizes. The figures are
the samples that each run has seen, rank by rank, and the bits of its weights at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

WIDTH, MICRO, EPOCHS = 8, 2, 2


def sample(index: int) -> dict[str, torch.Tensor]:
    values = torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))
    return {"ids": torch.tensor(index), "x": values}


class Streamed(IterableDataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return map(sample, range(self.count))


class Model(nn.Module):
    """Remembers the samples that it saw, and has dropout: its random numbers have to go on, too."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 16), nn.Dropout(dropout), nn.Linear(16, 1))
        self.seen: list[int] = []

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen += ids.tolist()
        return {"loss": (self.layers(x) - x.sum(-1, keepdim=True)).square().mean()}


def config(given: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_accumulation_steps": given.accumulation,
        "zero_optimization": {"stage": 2},
        "gradient_clipping": 1.0,
    }


def record(model: Model, steps: int) -> dict[str, Any]:
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, model.seen)
    bits = hashlib.sha256()
    for parameter in model.parameters():
        bits.update(parameter.detach().numpy().tobytes())
    return {"seen": seen, "steps": steps, "weights": bits.hexdigest()}


def run_trainer(given: Any, data: Any, resume: int | None) -> dict[str, Any]:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(given.folder / ("whole" if resume is None else "resumed")),
        deepspeed=None if given.plain else config(given),
        use_cpu=True,
        num_train_epochs=EPOCHS,
        max_steps=given.max_steps,
        per_device_train_batch_size=MICRO,
        gradient_accumulation_steps=given.accumulation,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        save_strategy="steps" if resume is None else "no",
        save_steps=1,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    model = Model(given.dropout)
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    at = None if resume is None else str(given.folder / "whole" / f"checkpoint-{resume}")
    trainer.train(resume_from_checkpoint=at)
    return record(model, trainer.state.global_step)


def run_accelerate(given: Any, data: Any, resume: int | None) -> dict[str, Any]:
    """As accelerate's guide to checkpoints has it: load_state, then skip_first_batches."""
    from accelerate import Accelerator, skip_first_batches
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import DataLoaderConfiguration, DeepSpeedPlugin

    AcceleratorState._reset_state()
    GradientState._reset_state()
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=given.accumulation,
        deepspeed_plugin=None if given.plain else DeepSpeedPlugin(hf_ds_config=config(given)),
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=given.seedable),
    )
    inner = Model(given.dropout)
    torch.manual_seed(7)
    model, optimizer, loader = accelerator.prepare(
        inner,
        torch.optim.AdamW(inner.parameters(), lr=0.01),
        DataLoader(data, batch_size=MICRO, shuffle=not given.iterable),
    )
    step = first = begin = 0
    if resume is not None:
        place = given.folder / f"step{resume}"
        accelerator.load_state(str(place))
        step, first, begin = json.loads((place / "position.json").read_text())
    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        batches = skip_first_batches(loader, begin) if begin else loader
        for at, batch in enumerate(batches, begin):
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                if resume is None:
                    place = given.folder / f"step{step}"
                    accelerator.save_state(str(place))
                    accelerator.wait_for_everyone()
                    if accelerator.is_main_process:
                        text = json.dumps([step, epoch, at + 1])
                        (place / "position.json").write_text(text)
        begin = 0
    return record(inner, step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["trainer", "accelerate"])
    parser.add_argument("--samples", type=int, default=21)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--iterable", action="store_true")
    parser.add_argument("--max_steps", type=int, default=-1, help="of an IterableDataset")
    parser.add_argument("--seedable", action="store_true", help="accelerate's own sampler")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--plain", action="store_true", help="without zerorun, on PyTorch's DDP")
    parser.add_argument("--first", action="store_true", help="only the uninterrupted run")
    parser.add_argument("--rest", type=int, default=0, help="only runs that resume, after 1 to N")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--local_rank", type=int, default=0, help="the launcher's")
    given = parser.parse_args()
    deepspeed.init_distributed()
    run = run_trainer if given.kind == "trainer" else run_accelerate
    count = given.samples
    data = Streamed(count) if given.iterable else [sample(index) for index in range(count)]
    found = {} if given.rest else {"whole": run(given, data, None)}
    steps = given.rest or found["whole"]["steps"]
    for at in range(1, 1 if given.first else steps + 1):
        found[str(at)] = run(given, data, at)
    if dist.get_rank() == 0:
        name = "resumed.json" if given.rest else "whole.json"
        (given.folder / name).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
