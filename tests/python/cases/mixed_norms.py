"""Batch and instance norms in 16 bits, whose running statistics stay fp32."""

import copy
import functools
import itertools
import math
import warnings
from collections.abc import Callable

import deepspeed
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import zerorun
from torch import nn
from torch.utils.checkpoint import checkpoint

from cases import models
from cases.models import *

STEPS = 4
ROWS, CHANNELS = 4, 8
FP16 = {"fp16": {"enabled": True, "loss_scale": 16}}
DTYPES = ((torch.bfloat16, BF16), (torch.float16, FP16))


class Calling(nn.BatchNorm2d):
    """A forward of its own around the inherited one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(super().forward(x))


class Direct(nn.BatchNorm2d):
    """A forward of its own around torch's function, as timm has it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.weight.dtype
        mean, var = self.running_mean, self.running_var
        return F.relu(F.batch_norm(x, mean, var, self.weight, self.bias, self.training, 0.1))


class Normed(nn.Module):
    """One of each kind of norm."""

    wrap: Callable[..., torch.Tensor] = staticmethod(lambda module, x: module(x))
    synced = True

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, CHANNELS, 3)
        norms = [nn.BatchNorm2d, Calling, Direct]
        if self.synced and DEVICE.type == "cpu" and not dist.is_initialized():
            norms.append(nn.SyncBatchNorm)  # which torch has between processes on GPUs only
        self.norms = nn.Sequential(
            *(kind(CHANNELS) for kind in norms),
            nn.BatchNorm2d(CHANNELS, affine=False),
            nn.InstanceNorm2d(CHANNELS, affine=True, track_running_stats=True),
        )
        self.mixed = nn.Linear(CHANNELS, CHANNELS)
        self.norm = nn.BatchNorm1d(CHANNELS, momentum=None)
        self.head = nn.Linear(CHANNELS, 1)
        for module in self.modules():
            if getattr(module, "running_var", None) is not None and module.affine:
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.uniform_(module.bias, -0.5, 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.wrap(self.norms, self.first(x)).mean((2, 3))
        return self.head(self.wrap(self.norm, self.mixed(x)))


class InScript(Normed):
    """In a script of DeepSpeed, whose engine starts a process group and rounds the masters."""

    synced = False


def recomputed(module: nn.Module, x: torch.Tensor, reentrant: bool) -> torch.Tensor:
    return checkpoint(module, x, use_reentrant=reentrant) if module.training else module(x)


class Checkpointed(Normed):
    wrap = staticmethod(functools.partial(recomputed, reentrant=False))


class Reentrant(Normed):
    wrap = staticmethod(functools.partial(recomputed, reentrant=True))


def images(step: int) -> torch.Tensor:
    """The same on all ranks, so that statistics and gradients are those of one process."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(ROWS, 3, 6, 6, generator=generator).to(DEVICE) + 0.5


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x).float() - x.float().mean((1, 2, 3))[:, None]).square().mean()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def torch_alone(dtype: torch.dtype, kind: type[Normed] = Normed) -> tuple[list[float], nn.Module]:
    """Mixed precision by hand: fp32 masters, and a model that computes in `dtype` with the values
    that its parameters have in `dtype`; torch wants them in fp32 in norms."""
    model = make(kind).to(DEVICE)
    rounded = dtype if kind is InScript else torch.float32
    masters = [p.detach().to(rounded).float() for p in model.parameters()]
    masters = [nn.Parameter(master.clone()) for master in masters]
    optimizer = torch.optim.SGD(masters, lr=0.05)
    for module in model.modules():
        if not hasattr(module, "running_var"):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(dtype)
    losses = []
    for step in range(STEPS):
        for parameter, master in zip(model.parameters(), masters, strict=True):
            parameter.data.copy_(master.data.to(dtype))
            parameter.grad = None
        loss = loss_of(model, images(step).to(dtype))
        (loss * 16).backward()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad = parameter.grad.to(dtype).float() / 16
        optimizer.step()
        losses.append(loss.item())
    for parameter, master in zip(model.parameters(), masters, strict=True):
        parameter.data.copy_(master.data.to(dtype))
    return losses, model.eval()


def train(engine: zerorun.ZeroEngine, dtype: torch.dtype) -> list[float]:
    return models.train(engine, STEPS, 0, lambda each, at: loss_of(each, images(at).to(dtype)))


def settings(stage: int, keys: dict[str, object]) -> dict[str, object]:
    return config(stage, gradient_clipping=0.0, **keys)


def check(make_engine: Callable[[nn.Module], zerorun.ZeroEngine], dtype: torch.dtype, kind) -> None:
    """Losses, statistics and the result in eval are those of torch alone."""
    expected, plain = torch_alone(dtype, kind)
    model = make(kind)
    engine = make_engine(model)
    losses = train(engine, dtype)
    assert losses == pytest.approx(expected, rel=0.01), (expected, dtype, kind)
    found = statistics(model)
    assert {b.dtype for b in found.values()} == {torch.float32, torch.int64}
    for name, value in statistics(plain).items():
        torch.testing.assert_close(found[name], value, rtol=0.01, atol=0.01)
    engine.eval()
    x = images(STEPS).to(dtype)
    with torch.no_grad():
        torch.testing.assert_close(engine(x), plain(x), rtol=0.05, atol=0.05)
    for name, value in statistics(plain).items():
        torch.testing.assert_close(found[name], value, rtol=0.01, atol=0.01)


def started(model: nn.Module, stage: int, keys: dict[str, object]) -> zerorun.ZeroEngine:
    return initialize(model, sgd(model), config=settings(stage, keys))[0]


def case_they_train_as_with_fp32_parameters_of_16_bit_values() -> None:
    for (dtype, keys), stage in itertools.product(DTYPES, STAGES):
        check(lambda model: started(model, stage, keys), dtype, Normed)


def case_they_train_under_activation_checkpointing() -> None:
    for kind, stage in itertools.product((Checkpointed, Reentrant), STAGES):
        check(lambda model: started(model, stage, BF16), torch.bfloat16, kind)


def case_they_train_in_shard_and_in_scripts_of_deepspeed() -> None:
    for stage in STAGES:

        def sharded(model: nn.Module) -> zerorun.ZeroEngine:
            return shard(model, stage=stage, optimizer=sgd(model), dtype=torch.bfloat16)

        def script(model: nn.Module) -> zerorun.ZeroEngine:
            given = {"optimizer": sgd(model), "config": settings(stage, BF16)}
            return kept(deepspeed.initialize(model=model, **given))[0]

        check(sharded, torch.bfloat16, Normed)
        check(script, torch.bfloat16, InScript)


def case_modules_are_as_they_were() -> None:
    """Their parameters are 16 bits wide in forwards of their own, in copies and afterwards."""
    model = make(Normed)
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    engine = started(model, 1, BF16)
    train(engine, torch.bfloat16)
    assert model.norms[2].seen == torch.bfloat16
    copied = copy.deepcopy(engine.module)
    engine.destroy()
    vars(model.norms[2]).pop("seen")
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    for module in (model, copied):
        assert module.norm.weight.dtype == torch.bfloat16
        assert module.norm.running_mean.dtype == torch.float32
        assert math.isfinite(loss_of(module, images(0).bfloat16()).item())


def case_nothing_is_cast_where_nothing_is_mixed() -> None:
    for keys, dtype in (
        ({}, torch.float32),
        (BF16 | {"data_types": {"buffer_dtype": "bf16"}}, torch.bfloat16),
    ):
        model = make(Normed)
        engine = started(model, 2, keys)
        result = engine.module.norm(torch.randn(ROWS, CHANNELS, device=DEVICE, dtype=dtype))
        nodes = {type(node).__name__ for node, _ in result.grad_fn.next_functions if node}
        assert "ToCopyBackward0" not in nodes, nodes
        assert model.norm.running_mean.dtype == dtype


def case_norms_can_still_be_scripted_and_compiled() -> None:
    model = make(Normed)
    started(model, 0, BF16)
    x = torch.randn(ROWS, CHANNELS, 3, 3, device=DEVICE)
    for kind in (nn.BatchNorm2d, nn.InstanceNorm2d):
        norm = kind(CHANNELS, affine=True, track_running_stats=True).to(DEVICE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its age
            scripted = torch.jit.script(copy.deepcopy(norm))
        torch.testing.assert_close(scripted(x), norm(x))
        mixed = kind(CHANNELS, affine=True, track_running_stats=True).to(DEVICE)
        mixed.weight.data, mixed.bias.data = mixed.weight.bfloat16(), mixed.bias.bfloat16()
        compiled = torch.compile(copy.deepcopy(mixed), backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x.bfloat16()), mixed(x.bfloat16()))
