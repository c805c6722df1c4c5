"""Memory of a (fake) GPU while a model comes into an engine."""

import functools
import gc
from typing import Any
from unittest import mock

import fake_torch_cuda
import pytest
import torch
import torch.distributed as dist
import zerorun
from torch import nn
from zerorun import device
from zerorun.shards.parameters import Loading
from zerorun.shards.shards import Policy, Shards

from cases.models import *

fake = fake_torch_cuda.installed()


class Large(nn.Module):
    """Parameters of several megabytes, of which none is much larger than the others."""

    WIDTH = 1024

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(self.WIDTH, self.WIDTH) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


LARGEST = 4 * Large.WIDTH**2  # bytes
BUCKET = LARGEST // 2 + 2 * Large.WIDTH  # bytes of a unit in bf16
SLACK = 1 << 16  # of what is not parameters


def with_initialize(stage: int) -> Any:
    model = make(Large)
    return functools.partial(
        zerorun.initialize, model, adamw(model), config=config(stage, bf16={"enabled": True})
    )


def with_shard(stage: int) -> Any:
    model = make(Large)
    return functools.partial(
        zerorun.shard, model, stage=stage, optimizer=adamw(model), dtype=torch.bfloat16
    )


def now() -> int:
    """Bytes that the engine and PyTorch have."""
    fake.take_peak()
    return fake.take_peak()


def peak_of(start: Any, stage: int) -> tuple[int, int]:
    """The most memory meanwhile, and what is held by the engine in the end."""
    gc.collect()
    before = now()
    made = start()
    peak = fake.take_peak() - before
    gc.collect()
    held = now() - before
    engine = made[0] if isinstance(made, tuple) else made
    plan = engine._meter.figures.memory_plan()
    # What comes and goes with training is not there yet.
    states = sum(plan.values()) - plan.get("buckets", 0)
    engine.destroy()
    assert states <= held <= sum(plan.values()) + SLACK, (stage, held, plan)
    return peak, held


def case_the_peak_is_the_plan_and_the_largest_parameter() -> None:
    for way in (with_initialize, with_shard):
        for stage in STAGES:
            peak, held = peak_of(way(stage), stage)
            gathered = BUCKET if stage == 3 else 0  # views of a bucket are made in its memory
            assert held <= peak <= held + max(LARGEST, gathered) + SLACK, (way, stage, peak, held)


def case_deepspeeds_masters_are_rounded_so_16_bits_go_over() -> None:
    for stage in STAGES:
        model = make(Large)
        start = functools.partial(
            zerorun.initialize,
            model,
            adamw(model),
            config=config(stage, bf16={"enabled": True}),
            engine_class=Rounding,
        )
        peak, held = peak_of(start, stage)
        assert peak <= held + BUCKET + SLACK, (stage, peak, held)


class Rounding(zerorun.ZeroEngine):
    policy = Policy(round_masters=True)


def case_a_model_on_the_meta_device_waits_in_host_memory() -> None:
    for stage in STAGES:
        with torch.device("meta"):
            model = Large()
        start = functools.partial(
            zerorun.shard, model, stage=stage, optimizer=adamw(model), dtype=torch.bfloat16
        )
        peak, held = peak_of(start, stage)
        # Values of zero.Init's kind are gathered before they move.
        assert peak <= held + LARGEST + SLACK, (stage, peak, held)


def case_a_model_that_is_on_the_gpu_goes_as_it_is_taken_over() -> None:
    take, held = Shards._take, []

    def measured(shards: Shards, parameter: nn.Parameter, reference: Any) -> None:
        nbytes, before = parameter.nbytes, now()
        take(shards, parameter, reference)
        held.append(before - now() - nbytes)

    for stage in STAGES:
        model = make(Large)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(DEVICE)
        with mock.patch.object(Shards, "_take", measured):
            engine, *_ = zerorun.initialize(model, adamw(model), config=config(stage))
        engine.destroy()
    assert held == [0] * len(held)


def case_grads_of_a_model_on_the_host_stay_there() -> None:
    model = make()
    loss_of(model, batch_of(0)).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    with device.on_local_device(model) as found:
        assert found == DEVICE
        assert all(gradients[name].device.type == "cpu" for name in gradients)
    engine, *_ = initialize(model, adamw(model), config=config(2))
    assert_close(train(engine, 2), reference(steps=2)[0])


def case_no_memory_for_the_largest_parameter_leaves_the_model() -> None:
    loss = loss_of(make(), batch_of(0))

    class Refused(Loading):
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            def empty(*_: Any, **__: Any) -> torch.Tensor:
                raise torch.OutOfMemoryError("no memory")

            with mock.patch.object(torch, "empty", empty):
                super().__init__(*arguments, **keywords)

    for stage in STAGES:
        model = make()
        model.register_buffer("constant", torch.ones(2))
        with mock.patch("zerorun.shards.shards.Loading", Refused):
            start = functools.partial(initialize, model, adamw(model), config=config(stage))
            raises(torch.OutOfMemoryError, "no memory", start)
        tensors = [*model.parameters(), model.constant]
        assert {tensor.device.type for tensor in tensors} == {"cpu"}
        assert torch.equal(loss_of(model, batch_of(0)), loss)


class Deriving(nn.Parameter):
    """Does more than to move."""

    moved = 0

    def to(self, *arguments: Any, **keywords: Any) -> Any:
        Deriving.moved += 1
        return super().to(*arguments, **keywords)


def case_classes_of_parameters_are_moved_by_their_own_way() -> None:
    model = make()
    model.embedding.weight = model.head.weight = Deriving(model.embedding.weight.data)
    engine, *_ = initialize(model, adamw(model), config=config(2))
    assert Deriving.moved > 0
    assert_close(train(engine, 2), reference(steps=2)[0])


def case_an_error_that_is_not_about_memory_is_not_hidden() -> None:
    """Neither where a unit is gathered for its use nor where it is gathered ahead."""
    zero = config(3)["zero_optimization"] | {"overlap_comm": True}
    _, engine = started(config(3, zero_optimization=zero))
    train(engine, 3)
    memory = engine._shards.gather_hooks.memory
    acquire = memory._acquire
    for kind in (KeyboardInterrupt, ZeroDivisionError, RuntimeError):
        for number in (1, 2, 3):
            calls: list[int] = []

            def fails(bucket: int, calls=calls, number=number, kind=kind) -> int:
                calls.append(bucket)
                if len(calls) == number:
                    raise kind("told")
                return acquire(bucket)

            memory._acquire = fails
            memory.serve(engine._core)
            with pytest.raises(kind, match="told"):
                engine(batch_of(0).to(DEVICE)[:, :-1])
            assert len(calls) == number  # it was not asked again
            memory._acquire = acquire
            memory.serve(engine._core)


def case_deepspeeds_group_is_bound_to_this_ranks_gpu() -> None:
    import os
    import sys

    site = os.path.join(os.path.dirname(zerorun.__file__), "compat", "site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [site, *sys.path])
        import deepspeed.comm
    for version, bound in (("2.6.0", DEVICE), ("2.7.0", None), ("2.11.0+cu130", DEVICE)):
        fake.made_current.clear()
        found: list[Any] = []

        def make_group(*_: Any, found=found, **keywords: Any) -> None:
            found.append((list(fake.made_current), keywords["device_id"]))

        with (
            mock.patch.object(dist, "init_process_group", make_group),
            mock.patch.object(torch, "__version__", version),
        ):
            deepspeed.comm.init_distributed()
        assert found == [([DEVICE], bound)]


def case_nothing_that_the_real_cuda_would_punish() -> None:
    """Comes last: of all cases before."""
    assert not fake.violation(), fake.violation()
