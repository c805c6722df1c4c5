"""torch.compile with its own backend, which makes C++ of a model's blocks."""

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch._inductor.config
import zerorun
from tied_model import Model
from torch import nn
from zerorun import consolidate, torch_seam

from cases.models import *

STEPS = 3
# PyTorch 2.4 reads the parameters of modules behind their backs unless it is asked.
INLINED = () if torch_seam.KNOWS_COMPILER else ("inline_inbuilt_nn_modules",)


def wrap_blocks(model: nn.Module, backend: str) -> None:
    for index, block in enumerate(model.blocks):
        model.blocks[index] = torch.compile(block, backend=backend)


def compile_blocks(model: nn.Module, backend: str) -> None:
    for block in model.blocks:
        block.compile(backend=backend)


def compile_all(model: nn.Module, backend: str) -> None:
    model.compile(backend=backend)


def shard_with_late_gathers(model: nn.Module, optimizer: torch.optim.Optimizer, stage: int):
    """Gathers of updated parameters continue during the next forward."""
    zero = {"stage": stage, "overlap_comm": True, "reduce_bucket_size": 2000}
    settings = config(stage, zero_optimization=zero, zerorun={"overlap_param_gather": True})
    return initialize(model, optimizer, config=settings)[0]


def sharded(model: nn.Module, stage: int, optimizer: torch.optim.Optimizer) -> zerorun.ZeroEngine:
    if PRIVATE_MEMORY:
        return initialize(model, optimizer, config=config(stage))[0]
    return shard(model, stage=stage, optimizer=optimizer, clip=1.0)


def losses_at(
    stage: int,
    change: Callable[[nn.Module, str], None],
    before: bool,
    late: bool = False,
    backend: str = "inductor",
) -> list[float]:
    torch._dynamo.reset()
    model = make()
    optimizer = adamw(model)
    if before:
        change(model, backend)
    if late:
        engine = shard_with_late_gathers(model, optimizer, stage)
    else:
        engine = sharded(model, stage, optimizer)
    if not before:
        change(model, backend)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    losses = train(engine, STEPS)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > graphs
    return losses


def case_compiled_models_train_as_they_are() -> None:
    """When parameters arrive is decided by hooks and guards, whatever code is generated, so code is
    generated at one stage of some."""
    expected, _ = reference(steps=STEPS)
    every = () if PRIVATE_MEMORY else STAGES
    with warnings.catch_warnings(), torch._inductor.config.patch(compile_threads=1):
        warnings.simplefilter("ignore")  # of the compiler itself
        for change, before, stages, generated in (
            (wrap_blocks, True, STAGES, 1),
            (compile_all, False, every, 3),
            (wrap_blocks, False, every[3:], None),
            (compile_blocks, False, (3,), 3),
            (compile_all, True, every[3:], None),
        ):
            for stage in stages:
                backend = "inductor" if stage == generated else "aot_eager"
                assert_close(losses_at(stage, change, before, backend=backend), expected)
        for change in (wrap_blocks, compile_blocks, compile_all) if 2 in STAGES else ():
            for before in (True, False):
                late, plain = (
                    losses_at(2, change, before, late, backend="aot_eager")
                    for late in (True, False)
                )
                assert late == plain, (change, before)


def turned_on(*settings: str) -> Any:
    """Those of the compiler's settings that this PyTorch has, and are not on."""
    config = torch._dynamo.config
    return config.patch({name: True for name in settings if not getattr(config, name, True)})


def case_compiled_models_read_what_no_call_holds() -> None:
    expected, _ = reference(kind=Inside, steps=STEPS)
    torch._dynamo.reset()
    model, engine = started(config(3), Inside)
    compiled = torch.compile(model, backend="eager")
    with warnings.catch_warnings(), turned_on(*INLINED):
        warnings.simplefilter("ignore")  # of the compiler itself
        losses = train(engine, STEPS, loss_at=lambda _, step: own_loss(compiled, step))
    assert_close(losses, expected)


def graphs_of(
    blocks: Callable[[nn.Module, Callable[..., object]], None],
    stage: int | None,
    late: bool = False,
):
    """How many calls each graph has that the compiler makes of a model's blocks."""
    found: list[int] = []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
        found.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    model = make(lambda: Model(depth=12))  # more than dynamo compiles one function for
    blocks(model, backend)
    if stage is None:
        for step in range(2):
            loss_of(model, part_of(batch_of(step))).backward()
    else:
        engine = (
            shard_with_late_gathers(model, adamw(model), stage)
            if late
            else sharded(model, stage, adamw(model))
        )
        train(engine, 2)
        engine.destroy()
    return found


def case_blocks_are_compiled_whole_and_once_at_every_stage() -> None:
    def wrap(model: nn.Module, backend: Callable[..., object]) -> None:
        for index, block in enumerate(model.blocks):
            model.blocks[index] = torch.compile(block, backend=backend)

    def compile_in_place(model: nn.Module, backend: Callable[..., object]) -> None:
        for block in model.blocks:
            block.compile(backend=backend)

    def compile_model(model: nn.Module, backend: Callable[..., object]) -> None:
        model.compile(backend=backend)

    with warnings.catch_warnings(), turned_on("fail_on_recompile_limit_hit", *INLINED):
        warnings.simplefilter("ignore")
        for blocks in (wrap, compile_in_place):
            expected = graphs_of(blocks, None)
            assert max(expected) > 3
            for stage in STAGES:
                assert graphs_of(blocks, stage) == expected, (stage, blocks)
            if 2 in STAGES:
                assert graphs_of(blocks, 2, late=True) == expected, blocks
        # Those of a whole model, and what lies around them.
        of_block = max(graphs_of(compile_in_place, None))
        assert graphs_of(compile_model, 3).count(of_block) == 1


def wrapped(model: nn.Module) -> nn.Module:
    """A block in a wrapper, in a model in another one. Nothing is generated."""
    model.register_buffer("constant", torch.rand(2))
    model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    return torch.compile(model, backend="eager")


def case_checkpoints_do_not_tell_compiled_models_from_others(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler itself
        compare_checkpoints(folder)


def compare_checkpoints(folder: Path) -> None:
    plain = make()
    names = [*plain.state_dict(), "constant"]
    for stage in STAGES:
        first = wrapped(make())
        expected = first.constant.clone()
        engine = sharded(first, stage, adamw(first))
        train(engine, 1)
        values = engine.full_state_dict(rank0_only=False)
        assert sorted(values) == sorted(names)
        engine.save_checkpoint(folder / f"{stage}")
        engine.save_16bit_model(folder / f"{stage}", "model.bin")
        losses = train(engine, 1, first=1)
        engine.destroy()
        if RANK == 0:
            assert sorted(torch.load(folder / f"{stage}" / "model.bin")) == sorted(names)
            whole = consolidate.fp32_state_dict(folder / f"{stage}")
            plain.register_buffer("constant", torch.zeros(2))
            plain.load_state_dict(whole)
        for compiled in (False, True):
            model = make(seed=1)
            model.register_buffer("constant", torch.zeros(2))
            model = wrapped(model) if compiled else model
            engine = sharded(model, stage, adamw(model))
            engine.load_checkpoint(folder / f"{stage}")
            assert torch.equal(model.constant, expected)
            assert_close(train(engine, 1, first=1), losses, 1e-6)
