"""torch.compile with its own backend, which makes C++ of a model's blocks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch._inductor.config
import zerorun
from torch import nn

from cases.models import STAGES, adamw, assert_close, make, reference, train

STEPS = 3


def wrap_blocks(model: nn.Module) -> None:
    for index, block in enumerate(model.blocks):
        model.blocks[index] = torch.compile(block)


def compile_blocks(model: nn.Module) -> None:
    for block in model.blocks:
        block.compile()


def compile_all(model: nn.Module) -> None:
    model.compile()


def losses_at(stage: int, change: Callable[[nn.Module], None], before: bool) -> list[float]:
    torch._dynamo.reset()
    model = make()
    optimizer = adamw(model)
    if before:
        change(model)
    engine = zerorun.shard(model, stage=stage, optimizer=optimizer, clip=1.0)
    if not before:
        change(model)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    losses = train(engine, STEPS)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > graphs
    engine.destroy()
    return losses


def case_compiled_models_train_as_they_are(_folder: Path) -> None:
    expected, _ = reference(steps=STEPS)
    with warnings.catch_warnings(), torch._inductor.config.patch(compile_threads=1):
        warnings.simplefilter("ignore")  # of the compiler itself
        for change, before, stages in (
            (wrap_blocks, True, STAGES),
            (compile_all, False, STAGES),
            (wrap_blocks, False, (3,)),
            (compile_blocks, False, (3,)),
            (compile_all, True, (3,)),
        ):
            for stage in stages:
                assert_close(losses_at(stage, change, before), expected)
