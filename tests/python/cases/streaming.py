"""engine.stream_parameters(): the model in flat buckets, for engines that run elsewhere."""

import runpy

import peft
from zerorun.checkpoints.streaming import ParameterBucket

from cases.models import *

SMALL = 3000  # bytes: less than the embedding, more than most others


class Buffered(Model):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("signs", torch.ones(4, dtype=torch.float64))
        self.register_buffer("seen", torch.arange(5))
        self.register_buffer("passing", torch.ones(3), persistent=False)


def start(stage: int, kind: type[nn.Module] = Buffered, **keys: Any) -> zerorun.ZeroEngine:
    _, engine = started(config(stage, **(BF16 | keys)), kind)
    return engine


def count_gathers(engine: zerorun.ZeroEngine) -> list[int]:
    """How often each unit is acquired from here on."""
    units = [] if engine._shards.gather_hooks is None else engine._shards.gather_hooks.units
    counts = [0] * len(units)

    def counted(index: int, acquire: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            counts[index] += 1
            acquire()

        return call

    for index, unit in enumerate(units):
        unit.acquire = counted(index, unit.acquire)
    return counts


def values_in(buckets: Iterator[ParameterBucket]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for bucket in buckets:
        for name, tensor in bucket.items():
            assert name not in found
            found[name] = tensor.clone()
    return found


def everybodys(own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    gathered: list[Any] = [None] * WORLD_SIZE
    dist.all_gather_object(gathered, own)
    assert sum(map(len, gathered)) == len({name for each in gathered for name in each})
    return {name: value for each in gathered for name, value in each.items()}


def case_the_whole_model_once_at_every_stage() -> None:
    """As state dict, parameter by parameter and in buckets, with each unit gathered once."""
    with_process_group()
    for stage in STAGES:
        engine = start(stage)
        train(engine, 2)
        whole = engine.full_state_dict(rank0_only=False)
        assert whole.keys() == make(Buffered).state_dict().keys()
        assert whole.pop("head.weight") is whole["embedding.weight"]  # tied
        assert (engine.full_state_dict() is None) == (RANK > 0)
        gathers = count_gathers(engine)
        given = dict(engine.iter_full_parameters(torch.float32, "cpu"))
        assert gathers == [int(stage == 3)] * len(gathers)
        assert given.keys() == {name for name, _ in engine.module.named_parameters()}
        assert_same(given, {name: whole[name].float() for name in given})
        assert next(engine.iter_full_parameters())[1].dtype == torch.bfloat16
        for owners in ("rank0", "all"):
            for nbytes in (1, SMALL, 1 << 30):
                gathers[:] = [0] * len(gathers)
                stream = engine.stream_parameters(bucket_bytes=nbytes, owners=owners)
                found = everybodys(values_in(stream))
                assert gathers == [int(stage == 3)] * len(gathers)
                assert found.keys() == whole.keys()
                for name, value in found.items():
                    assert value.dtype == whole[name].dtype, name
                    assert torch.equal(value.cpu(), whole[name]), (stage, owners, name)
                assert (stream.tensors, stream.changed) == (len(whole), len(whole))
        train(engine, 1)  # nothing stayed gathered


def case_ranks_have_the_same_turns_and_about_equal_buckets() -> None:
    engine = start(3)
    for owners in ("rank0", "all"):
        buckets = [
            (bucket.owner, bucket.tensors, None if bucket.data is None else bucket.data.nbytes)
            for bucket in engine.stream_parameters(bucket_bytes=SMALL, owners=owners)
        ]
        count = torch.tensor([len(buckets), -len(buckets)])
        engine.communicator.all_reduce(count, "max", "turns")
        assert count.sum() == 0
        for owner, tensors, nbytes in buckets:
            assert owner == (RANK if owners == "all" else 0)
            assert (nbytes is None) == (owner != RANK)
            if nbytes is not None:
                assert nbytes <= SMALL or len(tensors) == 1
                assert [each.offset % 16 for each in tensors] == [0] * len(tensors)
    tensors = [t for b in engine.stream_parameters() for t in b.tensors]
    assert [t.tied for t in tensors if t.name == "embedding.weight"] == [("head.weight",)]


def case_two_buckets_are_in_memory_at_most() -> None:
    engine = start(3)
    buckets: list[weakref.ref[torch.Tensor]] = []
    most = 0
    for bucket in engine.stream_parameters(bucket_bytes=SMALL, owners="all"):
        gc.collect()
        buckets.append(weakref.ref(bucket.data.untyped_storage()))
        most = max(most, sum(made() is not None for made in buckets))
    assert len(buckets) > 3
    assert most <= 2


def case_the_program_communicates_between_two_buckets() -> None:
    with_process_group()
    for stage in (1, 3):
        engine = start(stage)
        expected = engine.full_state_dict(rank0_only=False)
        found: dict[str, torch.Tensor] = {}
        for bucket in engine.stream_parameters(bucket_bytes=SMALL, dtype=torch.float32):
            last = bucket.tensors[-1]
            empty = torch.empty(-(-(last.offset + last.nbytes) // 16) * 16, dtype=torch.uint8)
            data = empty if bucket.data is None else bucket.data.cpu()
            dist.broadcast(data, bucket.owner)
            received = ParameterBucket(bucket.owner, bucket.tensors, data)
            found |= dict(received.items())
        for name, value in found.items():
            assert torch.equal(value, expected[name].to(value.dtype)), name


def names_in(buckets: Iterator[ParameterBucket]) -> set[str]:
    return {tensor.name for bucket in buckets for tensor in bucket.tensors}


def case_only_what_changed_since_a_step(folder: Path) -> None:
    for stage in (0, 2, 3):
        model = make(Buffered)
        model.blocks[0].requires_grad_(False)
        engine, *_ = initialize(model, adamw(model), config=config(stage, **BF16))
        buffers = {"seen", "signs"}
        frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
        train(engine, 1)
        engine.optimizer.param_groups[0]["lr"] = 0.1
        # The first stream that is asked to know has nothing to compare with.
        first = engine.stream_parameters(changed_since=0)
        all_names = names_in(first)
        assert first.changed == first.tensors == len(all_names)
        same = engine.stream_parameters(changed_since=1)
        assert [*same] == []
        assert (same.tensors, same.changed) == (len(all_names), 0)
        train(engine, 1)
        assert names_in(engine.stream_parameters(changed_since=1)) == all_names - frozen - buffers
        for name in buffers:
            model.get_buffer(name)[0] += 7
            assert names_in(engine.stream_parameters(changed_since=2)) == {name}
        # Of the steps before, one that was not streamed to the end is not known.
        train(engine, 1)
        next(engine.stream_parameters(changed_since=2)).items()
        assert names_in(engine.stream_parameters(changed_since=3)) == all_names
        # Loads may go back to a step that had other values.
        engine.save_checkpoint(folder / str(stage))
        assert [*engine.stream_parameters(changed_since=3)] == []
        engine.load_checkpoint(folder / str(stage))
        assert names_in(engine.stream_parameters(changed_since=3)) == all_names
        # Another dtype has other bits.
        stream = engine.stream_parameters(changed_since=3, dtype=torch.float16)
        assert names_in(stream) == all_names - buffers


def case_what_ends_a_stream_early() -> None:
    for stage in (1, 3):
        engine = start(stage)
        total = len(values_in(engine.stream_parameters(owners="all")))
        for bucket in engine.stream_parameters(bucket_bytes=1):
            assert bucket.tensors
            break
        del bucket
        train(engine, 1)  # which refuses parameters that are still gathered
        stream = engine.stream_parameters(bucket_bytes=1)
        next(stream)
        train(engine, 1)
        refuses("began after step 1 and was ended by a step", stream.__next__)
        stream = engine.stream_parameters(bucket_bytes=1)
        next(stream)
        next(engine.stream_parameters(bucket_bytes=1))
        refuses("was ended by another stream", stream.__next__)

        def interrupted(engine: zerorun.ZeroEngine = engine) -> None:
            for _ in engine.stream_parameters(bucket_bytes=1):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt) as kept:  # whose traceback holds the loop
            interrupted()
        train(engine, 1)
        del kept
        assert len(values_in(engine.stream_parameters(owners="all"))) == total
        stream = engine.stream_parameters(bucket_bytes=1)
        next(stream)
        stream.close()
        engine.destroy()
        refuses("this engine was destroyed", stream.__next__)
        refuses("this engine was destroyed", engine.stream_parameters)


def case_arguments_that_are_wrong_or_differ() -> None:
    engine = start(3)
    for arguments in (
        {"bucket_bytes": 0},
        {"bucket_bytes": 1e6},
        {"owners": "rank1"},
        {"dtype": torch.int8},
        {"dtype": "bf16"},
        {"changed_since": -1},
        {"changed_since": 1},
        {"merge_adapters": "yes"},
    ):
        (name, value), *_ = arguments.items()
        text = f"stream_parameters: {name}: got {value!r}, expected"
        refuses(text, engine.stream_parameters, **arguments)
    if WORLD_SIZE > 1:
        since = 0 if RANK == 0 else 3
        text = "changed_since: got 3, expected a step from 0 to 0"
        refuses(text, engine.stream_parameters, changed_since=since)
        text = "ranks disagree about its arguments"
        refuses(text, engine.stream_parameters, bucket_bytes=1000 + RANK)
    assert len([*engine.stream_parameters(bucket_bytes=1 << 60)]) == 1


def case_adapters_are_within_the_weights() -> None:
    for stage in (2, 3):
        for options in ({}, {"use_dora": True}, {"modules_to_save": ["head"]}):
            torch.manual_seed(0)
            lora = peft.LoraConfig(r=4, target_modules=["first", "second"], **options)
            model = peft.get_peft_model(layers(), lora)
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    nn.init.normal_(parameter)
            engine, *_ = initialize(model, adamw(model), config=config(stage))
            before = engine.full_state_dict(rank0_only=False)
            found = values_in(engine.stream_parameters(merge_adapters=True, owners="rank0"))
            after = engine.full_state_dict(rank0_only=False)
            assert all(torch.equal(value, after[name]) for name, value in before.items())
            if stage < 3:
                model.merge_adapter()
                text = "has merged adapters already"
                refuses(text, engine.stream_parameters, merge_adapters=True)
            engine.destroy()
            plain = peft.get_peft_model(layers(), lora)
            plain.load_state_dict(before)
            expected = plain.merge_and_unload().state_dict()
            if RANK > 0:
                assert not found
                continue
            assert found.keys() == expected.keys()
            for name, value in found.items():
                assert torch.allclose(value.cpu(), expected[name], atol=1e-6), (stage, name)


def layers() -> nn.Module:
    torch.manual_seed(1)
    first, second = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
    return nn.ModuleDict({"first": first, "second": second, "head": nn.Linear(8, 4)})


def case_the_recipe_for_vllm_gives_what_its_interface_asks_for() -> None:
    """vLLM's WeightSource is a stand-in: names, owners, and pairs in the order of the metadata."""
    base = types.ModuleType("vllm.distributed.weight_transfer.base")
    base.ParamMeta = collections.namedtuple(  # type: ignore[attr-defined]
        "ParamMeta", "name dtype shape owners"
    )
    base.WeightSource = type("WeightSource", (), {})  # type: ignore[attr-defined]
    parents = ["vllm", "vllm.distributed", "vllm.distributed.weight_transfer"]
    modules = {name: types.ModuleType(name) for name in parents} | {base.__name__: base}
    recipe = ROOT / "examples" / "recipes" / "vllm_weights.py"
    with mock.patch.dict(sys.modules, modules):
        policy = runpy.run_path(str(recipe))["Policy"]
    for stage in STAGES:
        engine = start(stage)
        source = policy(engine)
        for _ in range(2):
            train(engine, 1)
            whole = engine.full_state_dict(rank0_only=False)
            given = {name: value.clone() for name, value in source.iter_full()}
            owned = [meta for meta in source.metadata if RANK in meta.owners]
            assert list(given) == [meta.name for meta in owned]
            for meta in owned:
                assert (meta.dtype, meta.shape) == (given[meta.name].dtype, given[meta.name].shape)
                assert torch.equal(given[meta.name], whole[meta.name].to(meta.dtype))
        assert len(source.metadata) == len({meta.name for meta in source.metadata}) > 4
