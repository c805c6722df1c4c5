"""What runs beside the program and between its steps, its data loaders, and what steps compute."""

from zerorun.dataloader import RepeatingLoader, ResumableLoader
from zerorun.metrics import rank_path
from zerorun.metrics.work import flops_per_token

from cases.models import *

STEPS = 3


def case_a_file_has_the_plan_and_what_ran_beside_the_program(folder: Path) -> None:
    path = folder / "m.jsonl"
    zero = {"offload_optimizer": {"device": "cpu"}}
    settings = config(2, zero, zerorun={"comm_timeout": 30, "metrics": str(path)})
    train(started(settings)[1], STEPS)
    head, *lines = [json.loads(line) for line in rank_path(path, RANK).read_text().splitlines()]
    about = head["run"]
    for category, nbytes in about["plan"].items():
        assert math.isclose(lines[-1]["memory_peak"][category], nbytes, rel_tol=0.03, abs_tol=64)
    limits = {"all_gather", "all_reduce", "reduce_scatter"} if WORLD_SIZE > 1 else set()
    assert set(about["limits"]) == limits
    # What measured the limits is of no step; train()'s mean of a loss is of the next one.
    assert lines[0]["collectives"].keys() == lines[-1]["collectives"].keys()
    for name, (calls, nbytes, ms) in lines[-1]["collectives"].items():
        assert lines[1]["collectives"][name][:2] == [calls, nbytes]
        assert lines[0]["collectives"][name][:2] <= [calls, nbytes]
        assert ms >= 0
    assert lines[-1]["offload_ms"] + lines[-1]["offload_hidden_ms"] > 0


def case_waiting_for_data_and_saving_are_parts_of_a_step(folder: Path) -> None:
    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4 * BATCH

        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(0.001)
            return torch.randint(8, (8,))

    model = make()
    engine, _, loader, _ = initialize(model, adamw(model), config=config(1), training_data=Slow())
    seen = reports_of(engine)
    for batch in loader:
        engine.backward(loss_of(engine, batch))
        engine.step()
        if len(seen) == 1:
            engine.save_checkpoint(folder)
    own = BATCH // WORLD_SIZE
    assert len(seen) == len(loader) == 4
    assert all(own * 1.0 <= m["data_ms"] <= m["other_ms"] for m in seen)
    assert [m["checkpoint_ms"] is None for m in seen] == [True, False, True, True]
    assert seen[1]["checkpoint_ms"] + seen[1]["data_ms"] <= seen[1]["other_ms"]


def case_the_last_batch_of_an_epoch_is_dropped_if_it_is_not_full() -> None:
    for drop, batches in ((False, 2), (True, 1)):  # of 2, the second of 1
        keys = {"train_micro_batch_size_per_gpu": 2, "dataloader_drop_last": drop}
        _, _, loader, _ = initialize(make(), config=keys, training_data=range(3 * WORLD_SIZE))
        assert len(loader) == batches


def loading(samples: object, **options: object) -> tuple[zerorun.ZeroEngine, ResumableLoader]:
    _, engine = started(config(1))
    return engine, engine.make_dataloader(samples, 1, **options)


def ids(batches: object) -> list[int]:
    return [int(batch) for batch in batches]


def case_a_loader_divides_samples_in_the_order_asked_for() -> None:
    engine, loader = loading(range(8), shuffle=False)
    assert ids(loader) == list(range(RANK, 8, WORLD_SIZE))
    shuffled = [ids(engine.make_dataloader(range(8), 1, **own)) for own in ({}, {"shuffle": True})]
    assert shuffled[0] == shuffled[1] != ids(loader)
    for name in ("sampler", "batch_sampler"):
        refuses(f"got {name}", engine.make_dataloader, range(8), 1, **{name: [0]})

    class Streamed(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return iter(range(7))

        def __len__(self) -> int:
            return 7

    streamed = engine.make_dataloader(Streamed(), 2)
    assert len(streamed) == len(list(streamed)) == 2
    single = engine.make_dataloader(range(8), None, shuffle=False)
    assert list(single) == list(range(RANK, 8, WORLD_SIZE))
    for size in (0, 1.5, True):
        refuses(f"batch_size: got {size!r}, expected", engine.make_dataloader, range(8), size)
    for wrong in ({"num_worker": 1}, {"timeout": -1}):
        refuses("expected options of torch", engine.make_dataloader, range(8), 1, **wrong)
    for wrong in (None, iter([1])):
        text = f"dataset: got {type(wrong).__name__}, expected"
        refuses(text, engine.make_dataloader, wrong, 1)


def case_checkpoints_have_the_position_of_the_first_loader(folder: Path) -> None:
    for resumes in (False, True):
        engine, loader = loading(range(12))
        other = engine.make_dataloader(range(4), 1)  # for evaluation
        if resumes:
            engine.load_checkpoint(folder)
            assert (len(list(loader)), len(list(other))) == (12 // WORLD_SIZE - 1, 4 // WORLD_SIZE)
        else:
            next(iter(loader))
            train(engine, 1)
            list(other)
            train(engine, 1)
            engine.save_checkpoint(folder)


def case_an_iterator_begins_at_its_first_batch_and_ends_with_a_load(folder: Path) -> None:
    engine, loader = loading(range(12), shuffle=False)
    repeating = RepeatingLoader(loader)
    seen = [int(next(repeating)) for _ in range(2)]
    train(engine, 1)
    engine.save_checkpoint(folder)
    engine.load_checkpoint(folder)
    refuses("begin a new iterator", next, repeating)
    rest = ids(loader)
    assert (seen + rest, ids(loader)) == (list(range(RANK, 12, WORLD_SIZE)),) * 2
    early, resumed = RepeatingLoader(loader), iter(loader)  # neither has given a batch
    engine.load_checkpoint(folder)
    assert [int(next(early)) for _ in rest] == rest
    assert int(next(resumed)) == RANK


def case_flops_of_a_step_are_those_of_its_tokens(folder: Path) -> None:
    own = {"metrics": str(folder / "m.jsonl"), "comm_timeout": 30}
    linear = [module for module in make().modules() if isinstance(module, torch.nn.Linear)]
    weights = sum(module.weight.numel() for module in linear)
    for stage in (1, 3):
        _, engine = started(config(stage, zerorun=own))
        train(engine, 1)
        metrics = engine.metrics()
        assert metrics["flops"] == 6 * weights * BATCH * 8
        seconds, peak = metrics["step_ms"] / 1e3, engine._meter.work.peak
        assert math.isclose(metrics["mfu"], metrics["flops"] / seconds / peak, rel_tol=1e-6)
    model = make()
    model.mask = nn.Parameter(torch.ones(4) > 0, requires_grad=False)  # the first one
    assert shard(model, stage=1, metrics=folder / "mask.jsonl")._meter.work.peak > 0
    frozen = torch.nn.Linear(4, 8).requires_grad_(False)
    tied = torch.nn.Linear(8, 16, bias=False)
    table = torch.nn.Embedding(16, 8)
    table.weight = tied.weight
    assert flops_per_token(torch.nn.Sequential(frozen, table, tied)) == 4 * 32 + 6 * 128
    profiler = {"enabled": True, "output_file": str(folder / "flops.txt")}
    _, engine = started(config(1, flops_profiler=profiler))
    train(engine, STEPS)
    counted = engine._meter.work.counted
    if RANK == 0:
        assert engine.metrics()["flops"] == counted * WORLD_SIZE
        assert counted / 3 == 2 * weights * BATCH // WORLD_SIZE * 8
