"""Hugging Face's Trainer, or a loop with accelerate, stops after every step and resumes.

The uninterrupted run saves after each of its steps, and from each of these checkpoints a new run
goes on: in the same job, or, for "first" and "rest", in jobs of different sizes. The figures are
the samples that each run has seen, rank by rank, and the bits of its weights at the end.

Of the words of a run, "uneven" is the number of samples, "stream" an IterableDataset, "seedable"
accelerate's own sampler, "still" means no dropout, "plain" PyTorch's DDP without zerorun.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from program import plain_config, trainer_arguments
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

WIDTH, MICRO, EPOCHS, STEPS = 8, 2, 2, 6


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

    def __init__(self, given: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        dropout = 0.0 if "still" in given.words else 0.1
        self.layers = nn.Sequential(nn.Linear(WIDTH, 16), nn.Dropout(dropout), nn.Linear(16, 1))
        self.seen: list[int] = []

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen += ids.tolist()
        return {"loss": (self.layers(x) - x.sum(-1, keepdim=True)).square().mean()}


def accumulation(given: Any) -> int:
    return 1 if "rest" in given.words else 2


def config(given: Any) -> dict[str, Any] | None:
    if "plain" in given.words:
        return None
    return plain_config(given.stage, given.bf16, gradient_accumulation_steps=accumulation(given))


def record(model: Model, steps: int) -> dict[str, Any]:
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, model.seen)
    bits = hashlib.sha256()
    for parameter in model.parameters():
        bits.update(parameter.detach().numpy().tobytes())
    return {"seen": seen, "steps": steps, "weights": bits.hexdigest()}


def run_trainer(given: Any, data: Any, resume: int | None) -> dict[str, Any]:
    from transformers import Trainer, TrainingArguments

    folder = given.figures.parent
    settings = trainer_arguments(
        given,
        output_dir=str(folder / ("whole" if resume is None else "resumed")),
        deepspeed=config(given),
        num_train_epochs=EPOCHS,
        max_steps=STEPS if "stream" in given.words else -1,
        gradient_accumulation_steps=accumulation(given),
        learning_rate=0.01,
        lr_scheduler_type="constant",
        save_strategy="steps" if resume is None else "no",
        save_steps=1,
        remove_unused_columns=False,
    )
    model = Model(given)
    trainer = Trainer(model=model, args=TrainingArguments(**settings), train_dataset=data)
    at = None if resume is None else str(folder / "whole" / f"checkpoint-{resume}")
    trainer.train(resume_from_checkpoint=at)
    return record(model, trainer.state.global_step)


def run_accelerate(given: Any, data: Any, resume: int | None) -> dict[str, Any]:
    """As accelerate's guide to checkpoints has it: load_state, then skip_first_batches."""
    from accelerate import Accelerator, skip_first_batches
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import DataLoaderConfiguration, DeepSpeedPlugin

    settings, folder = config(given), given.figures.parent
    AcceleratorState._reset_state()
    GradientState._reset_state()
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=accumulation(given),
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=settings) if settings else None,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler="seedable" in given.words),
    )
    inner = Model(given)
    torch.manual_seed(7)
    model, optimizer, loader = accelerator.prepare(
        inner,
        torch.optim.AdamW(inner.parameters(), lr=0.01),
        DataLoader(data, batch_size=MICRO, shuffle="stream" not in given.words),
    )
    step = first = begin = 0
    if resume is not None:
        place = folder / f"step{resume}"
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
                    place = folder / f"step{step}"
                    accelerator.save_state(str(place))
                    accelerator.wait_for_everyone()
                    if accelerator.is_main_process:
                        text = json.dumps([step, epoch, at + 1])
                        (place / "position.json").write_text(text)
        begin = 0
    return record(inner, step)


def figures(given: Any) -> dict[str, Any]:
    run = run_trainer if "trainer" in given.words else run_accelerate
    count = 19 if "uneven" in given.words else 21
    data = Streamed(count) if "stream" in given.words else [sample(at) for at in range(count)]
    found = {} if "rest" in given.words else {"whole": run(given, data, None)}
    steps = range(0 if "first" in given.words else STEPS)
    return found | {str(at + 1): run(given, data, at + 1) for at in steps}
