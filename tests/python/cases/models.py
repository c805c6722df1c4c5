"""Small models, data and a reference for the cases; and the imports that most files of cases need,
which take `from cases.models import *`."""

import collections
import contextlib
import copy
import functools
import gc
import inspect
import io
import itertools
import json
import logging
import math
import os
import pickle
import random
import re
import shutil
import sys
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import zerorun
from ranks import HERE, ROOT
from tied_model import VOCABULARY, Block, Model
from torch import nn
from torch.utils.checkpoint import checkpoint
from zerorun import communicator
from zerorun.zero import *

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
BATCH = 4
BF16 = {"bf16": {"enabled": True}}
AUTOCAST = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
STEPS = int(os.environ.get("CASE_STEPS", "8"))
# Set: every case at stage 3 only, with memory of each rank's own, as GPUs have it.
PRIVATE_MEMORY = "CASE_PRIVATE_MEMORY" in os.environ
STAGES = (3,) if PRIVATE_MEMORY else range(4)
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")

torch.set_num_threads(1)


class Tying(nn.Module):
    """Reads the parameter of a module that it has called."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.body = Block(32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.body(self.embedding(tokens)) @ self.embedding.weight.t()


class Inside(nn.Module):
    """Has a part that it calls as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Tying()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.part(tokens)


class Scaled(Model):
    """With a parameter of one element, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(3))
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens) * self.scale


def make(kind: type[nn.Module] = Model, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return kind()


def batch_of(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randint(0, VOCABULARY, (BATCH, 9), generator=generator)


def part_of(batch: torch.Tensor) -> torch.Tensor:
    return batch.chunk(WORLD_SIZE)[RANK]


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    tokens = tokens.to(next(model.parameters()).device)
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


LossAt = Callable[[nn.Module, int], torch.Tensor]  # of a model, at a step


def whole_loss(model: nn.Module, step: int) -> torch.Tensor:
    return loss_of(model, batch_of(step))


def own_loss(model: nn.Module, step: int) -> torch.Tensor:
    return loss_of(model, part_of(batch_of(step)))


def mean(loss: torch.Tensor, engine: zerorun.ZeroEngine) -> float:
    """Over the data-parallel ranks, in float64."""
    values = torch.zeros(engine.communicator.world_size)
    values[engine.communicator.rank] = loss.item()
    engine.communicator.all_reduce(values, "sum", "mean of the loss")
    return values.double().mean().item()


def norm_of(model: nn.Module) -> float:
    norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
    return torch.stack(norms).norm().item()


def adamw(model: nn.Module, **options: object) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, **options)


def sgd(model: nn.Module) -> torch.optim.SGD:
    """Whose step is as large as the gradient."""
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def rmsprop(model: nn.Module) -> torch.optim.RMSprop:
    return torch.optim.RMSprop(model.parameters(), lr=1e-3)


def config(stage: int, zero: dict[str, object] | None = None, **keys: object) -> dict[str, object]:
    """`zero`: more of that section."""
    basic = {"stage": stage, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 5000}
    return {
        "train_micro_batch_size_per_gpu": BATCH // WORLD_SIZE,
        "gradient_clipping": 1.0,
        "zero_optimization": basic | (zero or {}),
        "zerorun": {"comm_timeout": 30, "share_parameters": not PRIVATE_MEMORY},
    } | keys


def bare_config(zero: dict[str, object] | None = None, **keys: object) -> dict[str, object]:
    """Of stage 3, where nothing stays gathered after its use."""
    bare = {"stage3_max_reuse_distance": 0, "stage3_max_live_parameters": 0}
    return config(3, bare | (zero or {}), **keys)


def with_process_group() -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo")


_engines: list[zerorun.ZeroEngine] = []  # of the case that runs


def kept(made: Any) -> Any:
    """An engine, or what `initialize` returns, which ends with the case at the latest."""
    _engines.append(made[0] if isinstance(made, tuple) else made)
    return made


def initialize(*args: Any, **kwargs: Any) -> Any:
    return kept(zerorun.initialize(*args, **kwargs))


def shard(*args: Any, **kwargs: Any) -> Any:
    return kept(zerorun.shard(*args, **kwargs))


def end_engines() -> None:
    while _engines:
        _engines.pop(0).destroy()


def started(settings: dict[str, Any], kind: Any = Model, seed: int = 0, optimizer=adamw):
    """A model, and an engine that trains it, kept until the case ends."""
    model = make(kind, seed)
    return model, initialize(model, optimizer(model), config=settings)[0]


def torch_step(model: Any, optimizer: Any, step: int, clip=1.0, loss_at=whole_loss) -> float:
    """A step of one process with torch alone; returns its loss."""
    loss = loss_at(model, step)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss.item()


def reference(make_optimizer=adamw, kind=Model, steps=STEPS, clip=1.0, loss_at=whole_loss):
    """Losses of one process that trains with torch alone, and the model it ends with."""
    model = make(kind)
    optimizer = make_optimizer(model)
    return [torch_step(model, optimizer, step, clip, loss_at) for step in range(steps)], model


def backward(engine: zerorun.ZeroEngine, step: int = 0, loss_at: LossAt = own_loss) -> torch.Tensor:
    """The loss, after its backward."""
    loss = loss_at(engine, step)
    engine.backward(loss)
    return loss.detach()


def train(engine: Any, steps=STEPS, first: int = 0, loss_at: LossAt = own_loss) -> list[float]:
    losses = []
    for step in range(first, first + steps):
        loss = backward(engine, step, loss_at)
        engine.step()
        losses.append(mean(loss, engine))
    return losses


def reports_of(engine: zerorun.ZeroEngine) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    engine.add_listener(seen.append)
    return seen


def means(losses: list[float], engine: zerorun.ZeroEngine) -> list[float]:
    return [mean(torch.tensor(loss), engine) for loss in losses]


def assert_values(found: nn.Module, expected: nn.Module, rtol=1e-4, atol=1e-5) -> None:
    """An engine's masters are the values of a model without one."""
    for (name, own), other in zip(found.named_parameters(), expected.parameters(), strict=True):
        value = zerorun.zero.safe_get_full_fp32_param(own).cpu()
        torch.testing.assert_close(value, other.detach(), rtol=rtol, atol=atol, msg=name)


def assert_same(found: object, expected: object) -> None:
    """Tensors, or dictionaries or lists of them, have the same bits."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def assert_close(losses: list[float], expected: list[float], tolerance: float = 1e-5) -> None:
    assert len(losses) == len(expected)
    assert all(map(math.isfinite, losses + expected)), f"{losses} instead of {expected}"
    worst = max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))
    assert worst <= tolerance, f"relative difference {worst}: {losses} instead of {expected}"


@contextlib.contextmanager
def logged(name: str = "zerorun") -> Iterator[list[str]]:
    """What is logged by that name within the block, line by line."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(f"{record.levelname} {record.getMessage()}")
    logger = logging.getLogger(name)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def full(parameter: nn.Parameter) -> torch.Tensor:
    """A copy of its value, in host memory."""
    with GatheredParameters(parameter):
        return parameter.detach().cpu().clone()


def raises(kind: Any, text: str, call: Callable[..., object], /, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        call(*args, **kwargs)


def refuses(text: str, call: Callable[..., object], /, *args: Any, **kwargs: Any) -> None:
    """A ConfigError with this text."""
    raises(zerorun.ConfigError, text, call, *args, **kwargs)


def refuses_to_load(engine: zerorun.ZeroEngine, folder: object, text: str, *more: str) -> None:
    """A CheckpointError with each of the texts, which changes nothing."""
    before = engine._core.parameter_hash(), engine._core.step_count, engine.global_steps
    for each in (text, *more):
        raises(zerorun.CheckpointError, each, engine.load_checkpoint, folder)
    after = engine._core.parameter_hash(), engine._core.step_count, engine.global_steps
    assert after == before


def memory_of_process(field: str) -> int:
    """Bytes. Sets VmHWM, the most that was in use, back to what is."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


def flip(path: Path, at: int | None = None) -> None:
    """One bit, in the middle of a file unless a place is given."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    path.write_bytes(data)
