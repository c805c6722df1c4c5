"""Stages 1 and 2 with overlap: who reads parameters after a step waits for their gathers."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import zerorun
from torch import nn
from zerorun.hooks.updated_parameters import UpdatedParameter

from cases.models import DEVICE, Model, adamw, batch_of, config, loss_of, make, part_of, train


class Waits:
    """An engine's core that notes for which parameters somebody waited."""

    def __init__(self, engine: zerorun.ZeroEngine) -> None:
        self._core = engine.core
        self.names = {index: name for name, index in _ids(engine).items()}
        self.seen: list[str] = []
        updates = engine.shards.updates
        updates._core = self
        for bucket in updates._buckets:
            bucket.core = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def finish_updates(self, index: int | None = None) -> None:
        self.seen.append("all" if index is None else self.names[index])
        self._core.finish_updates(index)


def _ids(engine: zerorun.ZeroEngine) -> dict[str, int]:
    layout = engine.shards.layout
    return {layout.names[parameter]: index for parameter, index in layout.ids.items()}


class Foreign(nn.Module):
    """Hands its parameter to code that PyTorch does not know."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            assert type(weight) is not UpdatedParameter
            return values * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return gradient * 2, gradient.sum().reshape(1)

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.Function.apply(values, self.weight)


def made(stage: int, model: nn.Module | None = None, bucket: int = 300, overlap: bool = True):
    zero = {"stage": stage, "reduce_bucket_size": bucket, "overlap_comm": overlap}
    model = make() if model is None else model
    keys = {"zero_optimization": zero}
    return zerorun.initialize(model, adamw(model), config=config(stage, **keys))[0]


def updating(engine: zerorun.ZeroEngine) -> set[str]:
    return {name for name, p in engine.module.named_parameters() if type(p) is UpdatedParameter}


def values_of(engine: zerorun.ZeroEngine) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in engine.module.named_parameters()}


def case_a_step_leaves_the_gathers_to_the_next_forward(_folder: Path) -> None:
    expected = None
    for stage in (1, 2):
        for overlap in (False, True):
            engine = made(stage, overlap=overlap)
            losses = train(engine, 3)
            assert bool(updating(engine)) == overlap
            found = losses, engine.core.parameter_hash()
            expected = expected or found
            assert found == expected, (stage, overlap)
            engine.destroy()
            assert all(type(p) is nn.Parameter for p in engine.module.parameters())


def case_a_use_waits_for_its_bucket_alone(_folder: Path) -> None:
    engine = made(2)
    waits = Waits(engine)
    train(engine, 2)
    assert updating(engine) == {name for name, _ in engine.module.named_parameters()}
    waits.seen.clear()
    parameters = dict(engine.module.named_parameters())
    for parameter in parameters.values():  # what every loop does between two steps
        parameter.grad = None
        assert parameter.shape.numel() == parameter.numel()
        assert parameter.requires_grad
        assert parameter.device == DEVICE
    assert waits.seen == []
    last = list(parameters)[-1]
    parameters[last].data.sum()
    assert len(waits.seen) == 1
    assert last not in updating(engine)
    assert next(iter(parameters)) in updating(engine)
    parameters[last].data.sum()
    assert len(waits.seen) == 1
    loss_of(engine, part_of(batch_of(0)))
    assert not updating(engine)
    buckets = {engine.core.gradient_bucket(index) for index in _ids(engine).values()}
    assert len(waits.seen) == len(set(waits.seen)) == len(buckets) > 2
    engine.destroy()


def case_who_reads_parameters_sees_the_new_values(folder: Path) -> None:
    engine = made(1)
    train(engine, 2)
    new = values_of(engine)
    engine.destroy()

    def saved(engine: zerorun.ZeroEngine) -> dict[str, torch.Tensor]:
        file = io.BytesIO()
        torch.save(dict(engine.module.named_parameters()), file)
        file.seek(0)
        return torch.load(file, weights_only=False)

    def exported(engine: zerorun.ZeroEngine) -> dict[str, torch.Tensor]:
        engine.save_16bit_model(folder)
        engine.communicator.barrier("exported")
        return torch.load(folder / "pytorch_model.bin")

    named = lambda module: dict(module.named_parameters())  # noqa: E731
    readers: dict[str, Callable[[zerorun.ZeroEngine], dict[str, torch.Tensor]]] = {
        "data": lambda engine: {n: p.data for n, p in named(engine.module).items()},
        "detach": lambda engine: {n: p.detach() for n, p in named(engine.module).items()},
        "foreach": lambda engine: dict(
            zip(
                named(engine.module),
                torch._foreach_add(list(engine.module.parameters()), 0.0),
                strict=True,
            )
        ),
        "state_dict": lambda engine: engine.module.state_dict(),
        "full_state_dict": lambda engine: engine.full_state_dict(rank0_only=False),
        "iter_full_parameters": lambda engine: dict(engine.iter_full_parameters()),
        "deepcopy": lambda engine: named(copy.deepcopy(engine.module)),
        "save": saved,
        "save_16bit_model": exported,
        "close": lambda engine: (engine.destroy(), named(engine.module))[1],
    }
    for name, read in readers.items():
        engine = made(1)
        train(engine, 2)
        assert updating(engine)
        found = read(engine)
        for key, values in new.items():
            assert torch.equal(found[key].detach().to(values.device), values), (name, key)
            assert type(found[key]) is not UpdatedParameter, (name, key)
        engine.destroy()


def case_memory_with_another_name_is_finished_by_the_step(_folder: Path) -> None:
    engine = made(2)
    train(engine, 1)
    first = next(iter(engine.module.parameters()))
    held = first.data
    train(engine, 1)
    assert type(first) is nn.Parameter
    assert updating(engine)  # those of other buckets
    assert torch.equal(held, first.data)
    del held
    train(engine, 1)
    assert type(first) is UpdatedParameter
    engine.destroy()


def case_foreign_code_gets_finished_parameters(_folder: Path) -> None:
    model = nn.Sequential(make(Model), Foreign())
    engine = made(2, model)
    train(engine, 3)  # Foreign's function asserts it
    assert "1.weight" in updating(engine)
    engine.destroy()
