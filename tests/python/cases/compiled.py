"""torch.compile with its own backend, which makes C++ of a model's blocks."""

import torch._inductor.config
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from zerorun import consolidate, torch_seam

from cases.models import *

STEPS = 3
# PyTorch 2.4 reads the parameters of modules behind their backs unless it is asked.
INLINED = () if torch_seam.KNOWS_COMPILER else ("inline_inbuilt_nn_modules",)

ONE_GRAPH = torch_seam.KNOWS_COMPILER  # an error where hooks would split the graph

Backend = str | Callable[..., object]
Change = Callable[[nn.Module, Backend], None]


def wrap_blocks(model: nn.Module, backend: Backend) -> None:
    for index, block in enumerate(model.blocks):
        model.blocks[index] = torch.compile(block, backend=backend, fullgraph=ONE_GRAPH)


def compile_blocks(model: nn.Module, backend: Backend) -> None:
    for block in model.blocks:
        block.compile(backend=backend, fullgraph=ONE_GRAPH)


def compile_all(model: nn.Module, backend: Backend) -> None:
    model.compile(backend=backend)


def sharded(model: nn.Module, stage: int, optimizer: Any, late: bool = False) -> Any:
    """`late`: gathers of updated parameters continue during the next forward."""
    if late:
        zero = {"stage": stage, "overlap_comm": True, "reduce_bucket_size": 2000}
        settings = config(stage, zero_optimization=zero, zerorun={"overlap_param_gather": True})
    elif PRIVATE_MEMORY:
        settings = config(stage)
    else:
        return shard(model, stage=stage, optimizer=optimizer, clip=1.0)
    return initialize(model, optimizer, config=settings)[0]


@contextlib.contextmanager
def in_silence(*settings: str) -> Iterator[None]:
    """Without the compiler's own warnings; those of its settings on that this PyTorch has."""
    known = torch._dynamo.config
    missing = {name: True for name in settings if not getattr(known, name, True)}
    with warnings.catch_warnings(), known.patch(missing):
        warnings.simplefilter("ignore")
        yield


@functools.cache
def losses_at(stage: int, change: Change, before: bool, late=False, backend="inductor") -> Any:
    torch._dynamo.reset()
    model = make()
    optimizer = adamw(model)
    if before:
        change(model, backend)
    engine = sharded(model, stage, optimizer, late)
    if not before:
        change(model, backend)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    losses = train(engine, STEPS)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > graphs
    return losses


def case_compiled_models_train_as_they_are() -> None:
    """Hooks and guards decide when parameters arrive, whatever code is generated."""
    expected, _ = reference(steps=STEPS)
    every = () if PRIVATE_MEMORY else STAGES
    with in_silence(), torch._inductor.config.patch(compile_threads=1):
        for change, before, stages, generated in (
            (wrap_blocks, True, STAGES, None),
            (compile_all, False, every, 3),
            (wrap_blocks, False, every[3:], None),
            (compile_blocks, False, (3,), 3),
            (compile_all, True, every[3:], None),
        ):
            for stage in stages:
                backend = "inductor" if stage == generated else "aot_eager"
                assert_close(losses_at(stage, change, before, backend=backend), expected)
        late_runs = ((wrap_blocks, True), (compile_blocks, False), (compile_all, False))
        for given in ((2, *run) for run in late_runs if 2 in STAGES):
            late = losses_at(*given, late=True, backend="aot_eager")
            assert late == losses_at(*given, backend="aot_eager"), given


def case_compiled_models_read_what_no_call_holds() -> None:
    expected, _ = reference(kind=Inside, steps=STEPS)
    torch._dynamo.reset()
    model, engine = started(config(3), Inside)
    compiled = torch.compile(model, backend="eager")
    with in_silence(*INLINED):
        losses = train(engine, STEPS, loss_at=lambda _, step: own_loss(compiled, step))
    assert_close(losses, expected)


def graphs_of(change: Change, stage: int | None, late: bool = False) -> list[int]:
    found: list[int] = []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
        found.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    model = make(lambda: Model(depth=12))  # more than dynamo compiles one function for
    change(model, backend)
    if stage is None:
        for step in range(2):
            own_loss(model, step).backward()
    else:
        engine = sharded(model, stage, adamw(model), late)
        train(engine, 2)
        engine.destroy()
    return found


def case_blocks_are_compiled_whole_and_once_at_every_stage() -> None:
    with in_silence("fail_on_recompile_limit_hit", *INLINED):
        for change in (wrap_blocks, compile_blocks):
            expected = graphs_of(change, None)
            assert max(expected) > 3
            for stage in STAGES:
                assert graphs_of(change, stage) == expected, (stage, change)
            if 2 in STAGES:
                assert graphs_of(change, 2, late=True) == expected, change
        # Those of a whole model, and what lies around them.
        of_block = max(graphs_of(compile_blocks, None))
        assert graphs_of(compile_all, 3).count(of_block) == 1


def case_checkpoints_of_before_may_have_the_names_of_wrappers(folder: Path) -> None:
    saving = [
        mock.patch(f"zerorun.model.{name}.plain_name", str) for name in ("model_layout", "buffers")
    ]
    for make_optimizer in (adamw, sgd):
        path = folder / make_optimizer.__name__
        with in_silence():
            first = wrapped(make())
            with saving[0], saving[1]:
                engine = sharded(first, 2, make_optimizer(first))
                train(engine, 1)
                engine.save_checkpoint(path)
                losses = train(engine, 1, first=1)
        model = make(seed=1)
        model.register_buffer("constant", torch.zeros(2))
        plain = copy.deepcopy(model)
        engine = sharded(model, 3, make_optimizer(model))
        engine.load_checkpoint(path)
        assert torch.equal(model.constant, first.constant)
        assert_close(train(engine, 1, first=1), losses, 1e-6)
        plain.load_state_dict(consolidate.fp32_state_dict(path))
        assert "_orig_mod" in (path / "global_step1" / "checkpoint.json").read_text()


def wrapped(model: nn.Module) -> nn.Module:
    model.register_buffer("constant", torch.rand(2))
    model.blocks[0] = torch.compile(checkpoint_wrapper(model.blocks[0]), backend="eager")
    model.blocks[1] = checkpoint_wrapper(model.blocks[1])
    return torch.compile(model, backend="eager")


def case_checkpoints_do_not_tell_compiled_models_from_others(folder: Path) -> None:
    plain = make()
    names = [*plain.state_dict(), "constant"]
    with in_silence():
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
