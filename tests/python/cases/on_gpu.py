"""A GPU's ways, on the fake one: see fake_torch_cuda.py."""

import fake_torch_cuda
from zerorun import device

from cases.models import *
from cases.training import Reentrant

fake = fake_torch_cuda.installed()
SITE = os.path.join(os.path.dirname(zerorun.__file__), "compat", "site")


def trained(stage: int, zero: dict[str, object] | None = None, **keys: object):
    _, engine = started(config(stage, zero, **keys))
    losses = train(engine, 3 * engine.batch.accumulation_steps)
    return losses, engine._core.parameter_hash()


def case_a_model_goes_to_the_gpu() -> None:
    gc.collect()
    before = fake.bytes_held()
    for stage in STAGES:
        model = make()
        model.register_buffer("constant", torch.ones(2))
        engine = zerorun.initialize(model, adamw(model), config=config(stage))[0]
        assert engine.device == DEVICE
        assert {value.device for value in (*model.parameters(), model.constant)} == {DEVICE}
        if stage < 3:
            assert all(fake.is_the_engines(value) for value in model.parameters())
        train(engine, 1)
        assert {value.device for value in model.parameters()} == {DEVICE}
        engine.destroy()
        assert {value.device for value in model.parameters()} == {DEVICE}
        # One that is there already.
        engine = zerorun.initialize(model, adamw(model), config=config(stage))[0]
        assert fake.bytes_held() > before
        engine.destroy()
        del engine, model
        gc.collect()
        assert fake.bytes_held() == before


def case_bits_are_those_of_cpu_ranks() -> None:
    """With delays on the engine's own streams: a missing wait would show."""
    fake.set_delay(200)
    for keys in ({}, {"gradient_accumulation_steps": 2}, BF16):
        for stage in STAGES:
            assert trained(stage, **keys) == of_cpu_ranks(stage, **keys), (stage, keys)
    fake.set_delay(0)


def of_cpu_ranks(stage: int, **keys: object):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "_why_no_gpu", lambda: "hidden by the test")
        return trained(stage, **keys)


def case_offloading_changes_no_bit(folder: Path) -> None:
    """Of what CPU ranks get with everything in memory; with delays on the engine's own streams."""
    host, file = {"device": "cpu"}, {"device": "nvme", "nvme_path": str(folder)}
    states = [{"offload_optimizer": place} for place in (host, {**host, "ratio": 0.5}, file)]
    parameters = [{"offload_param": place} for place in (host, file, {**file, "max_in_cpu": 100})]
    both = [{**states[0], **parameters[0]}, {**states[2], **parameters[1]}]
    fake.set_delay(200)
    for stage in (1, 2, 3):
        expected = of_cpu_ranks(stage)
        for place in [*states, *(parameters if stage == 3 else ()), *(both if stage == 3 else ())]:
            assert trained(stage, place) == expected, (stage, place)
    fake.set_delay(0)


def case_a_torch_optimizer_steps_where_its_shards_rest(folder: Path) -> None:
    results = []
    for place in ({"device": "none"}, {"device": "cpu"}, {"device": "cpu", "ratio": 0.5}):
        model, engine = started(config(2, {"offload_optimizer": place}), optimizer=sgd)
        losses = train(engine, 3)
        own = engine.optimizer.state[model.head.weight].get("momentum_buffer", torch.ones(0))
        if own.numel() and "ratio" not in place:
            assert (own.device == DEVICE) == (place["device"] == "none")
        path = folder / f"{place}"
        engine.save_checkpoint(path)
        engine.load_checkpoint(path)
        losses += train(engine, 2, first=3)
        moments = safe_get_full_optimizer_state(model.head.weight, "momentum_buffer")
        assert moments.device == DEVICE
        results.append((losses, moments.tolist(), engine._core.parameter_hash()))
    assert results[1:] == results[:1] * 2


def case_gradients_of_a_bucket_are_copied_at_once() -> None:
    for stage in STAGES:
        model, engine = started(config(stage))
        parameters = len(list(model.parameters()))
        figures = zerorun._C.EngineFigures(engine._core)
        reduce = "all_reduce" if stage == 0 else "reduce_scatter"
        losses = train(engine, 1)
        reduced, copies = figures.collectives()[reduce][0], fake.launches_of("CopySegment")
        losses += train(engine, 1, first=1)
        reduced = figures.collectives()[reduce][0] - reduced - (stage == 0)  # that of the norm
        copies = fake.launches_of("CopySegment") - copies
        assert 1 < reduced < parameters
        assert 0 < copies <= reduced, (stage, copies, reduced)
        assert_close(losses, reference(steps=2)[0])


def case_gradients_of_two_streams_are_copied_on_their_own() -> None:
    """What waits for the rest of its bucket when backward goes on on another stream."""
    model, engine = started(config(2))
    switched: list[int] = []

    def switch(_grad: torch.Tensor) -> None:
        fake.current = switched.pop()

    losses = []
    for step in range(2):
        first, copies = fake.current, fake.launches_of("CopySegment")
        switched.append(fake.library.fake_torch_stream())
        handle = model.blocks[1].down.weight.register_hook(switch)
        loss = loss_of(engine, part_of(batch_of(step)))
        engine.backward(loss)
        handle.remove()
        assert not switched
        assert fake.launches_of("CopySegment") > copies
        assert fake.calls_on(fake.current) > 0
        losses.append(mean(loss, engine))
        engine.step()
        fake.current = first
    assert not fake.violation()
    assert_close(losses, reference(steps=2)[0])


def case_pytorch_gets_what_the_engine_keeps() -> None:
    """When it has no memory for a gather; then it is asked once more."""
    _, engine = started(config(3), Reentrant)
    memory = engine._shards.gather_hooks.memory
    acquire, refused = memory._acquire, []

    def scarce(bucket: int) -> int:
        if engine._core.memory_use()["kept"] > 0:
            refused.append(bucket)
            raise torch.OutOfMemoryError("no memory")
        return acquire(bucket)

    memory._acquire = scarce
    memory.serve(engine._core)
    losses = train(engine, 3)
    assert refused
    assert_close(losses, reference(kind=Reentrant, steps=3)[0])
    memory._acquire = lambda bucket: (_ for _ in ()).throw(torch.OutOfMemoryError("no memory"))
    memory.serve(engine._core)
    raises(torch.OutOfMemoryError, "no memory", engine, batch_of(0))
    memory._acquire = acquire
    memory.serve(engine._core)


def case_the_engine_works_on_pytorchs_current_stream() -> None:
    for stage in STAGES:
        _, engine = started(config(stage))
        losses = train(engine, 1)
        first = fake.calls_on(fake.current)
        assert first > 0
        with fake.other_stream() as other:
            engine.backward(loss_of(engine, part_of(batch_of(1))))
            reduced = fake.calls_on(other)
            engine.step()
            assert 0 < reduced < fake.calls_on(other)
            assert fake.calls_on(fake.current) == fake.calls_on(other)
        # Back on the first: what was submitted to the other one comes before.
        losses += train(engine, 1, first=2)
        assert fake.calls_on(fake.current) > first
        expected, _ = reference(steps=3)
        assert_close(losses, [expected[0], expected[2]])


def case_full_parameters_are_pytorchs_memory_while_gathered() -> None:
    model, engine = started(bare_config())
    block = model.blocks[1]
    inside = []
    block.up.register_forward_hook(lambda *_: inside.append(block.up.weight.untyped_storage()))
    losses = train(engine, 3)
    assert_close(losses, reference(steps=3)[0])
    assert all(storage.size() == 0 for storage in inside)  # after use
    assert all((storage._cdata, fake.current) in fake.recorded for storage in inside)
    assert all(value.shape == torch.Size([0]) for value in model.parameters())
    before = engine._core.memory_use()["buckets"]
    with GatheredParameters(block.up.weight):
        assert block.up.weight.untyped_storage().size() > 0
        assert engine._core.memory_use()["buckets"] > before
    assert engine._core.memory_use()["buckets"] == before


class Flattening(nn.GRU):
    """Has its weights moved into one block at each call, as programs do for cuDNN."""

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = [value.data_ptr() for value in self.parameters()]
        self.flatten_parameters()
        self.moved = before != [value.data_ptr() for value in self.parameters()]
        return super().forward(*inputs)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.rnn = Flattening(16, 16, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embedding(tokens))[0])


def case_weights_of_rnns_stay_in_the_engines_memory() -> None:
    expected, _ = reference(kind=Recurrent, steps=3)
    for stage in STAGES:
        model, engine = started(config(stage), Recurrent)
        assert_close(train(engine, 3), expected)
        assert not model.rnn.moved
        engine.destroy()
        if stage < 3:  # where the model is whole
            model.rnn(torch.zeros(1, 1, 16, device=DEVICE))
            assert model.rnn.moved


def case_parts_on_the_host_meet_parts_on_the_gpu() -> None:
    """Where a part of the states is offloaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [SITE, *sys.path])
        from deepspeed.runtime.base_optimizer import FlatGroup
    expected, _ = reference(steps=3, clip=0.3)
    half = {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}
    for stage in (1, 2, 3):
        model, engine = started(config(stage, half, gradient_clipping=0.0))
        losses = []
        for step in range(3):
            losses.append(mean(backward(engine, step), engine))
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            assert norm.device == DEVICE  # which NCCL could reduce
            engine.step()
        assert_close(losses, expected)
        owned = sum(interval.numel for interval in engine._core.state_intervals())
        states = FlatGroup(engine._shards, list(model.parameters())).states()
        assert states["exp_avg"].shape == (owned,)


def case_a_sharded_optimizer_works_where_the_parameters_are() -> None:
    for make_optimizer in (adamw, lambda model: adamw(model, amsgrad=True)):
        expected, _ = reference(make_optimizer, steps=3, clip=1e9)
        for place in (DEVICE, torch.device("cpu")):
            model = make().to(place)
            optimizer = zerorun.ShardedOptimizer(make_optimizer(model))
            assert optimizer.shards.device == place
            losses = []
            for step in range(3):
                loss = loss_of(model, part_of(batch_of(step)))
                loss.backward()
                optimizer.step()
                losses.append(mean(loss.detach(), optimizer.shards))
            assert_close(losses, expected)
            optimizer.consolidate_state_dict()
            optimizer.shards.close()


def case_collectives_of_set_up_take_tensors_of_either() -> None:
    _, engine = started(config(1))
    ranks = engine.communicator
    for place in (DEVICE, torch.device("cpu")):
        values = torch.full((3,), ranks.rank + 1.0, device=place)
        everybodys = torch.zeros(3 * WORLD_SIZE, device=place)
        ranks.all_gather(values, everybodys)
        assert everybodys.tolist() == [rank + 1.0 for rank in range(WORLD_SIZE) for _ in range(3)]
        ranks.all_reduce(values)
        assert values.tolist() == [WORLD_SIZE * (WORLD_SIZE + 1) / 2] * 3
        ranks.broadcast(everybodys, WORLD_SIZE - 1)
        assert everybodys.device == place
    values = torch.full((3,), ranks.rank + 1.0, device=DEVICE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "cpu", None)
        ranks.broadcast_on_gpu(values, WORLD_SIZE - 1)
    assert values.tolist() == [WORLD_SIZE] * 3
    text = "device 'cpu', expected 'cuda:0'"
    refuses(text, ranks.broadcast_on_gpu, torch.zeros(3))


def case_what_is_on_the_wrong_device_is_named() -> None:
    def start(model: nn.Module) -> object:
        return initialize(model, adamw(model), config=config(1))

    mixed = make()
    mixed.blocks[1].to(DEVICE)
    text = "parameter blocks.1.norm.weight is on device 'cuda:0', and embedding.weight on 'cpu'"
    refuses(text, start, mixed)
    elsewhere = SimpleNamespace(device=torch.device("cuda", 1), is_meta=False)
    text = "parameter w is on device 'cuda:1', but this rank trains on 'cuda:0': move the model"
    refuses(text, device.shared_device, [("w", elsewhere)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "_why_no_gpu", lambda: "CUDA: this build has no CUDA backend")
        text = "on device 'cuda:0', but this rank trains on 'cpu' (CUDA: this build has no CUDA"
        refuses(text, lambda: start(make().to(DEVICE)))
    model, engine = started(config(1))
    model.head.weight.grad = torch.zeros(model.head.weight.shape)
    index = engine._layout.ids[model.head.weight]
    text = "gradient of embedding.weight: got a tensor on device 'cpu', expected 'cuda:0'"
    refuses(text, lambda: engine._shards.collector.hook(index)(model.head.weight))


def case_deepspeeds_accelerator_is_the_gpu() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [SITE, *sys.path])
        from deepspeed.accelerator import get_accelerator
    found = get_accelerator()
    assert (found.device_name(), found.device_name(0)) == ("cuda", "cuda:0")
    assert (found.current_device(), found.current_device_name()) == (0, "cuda:0")
    assert found.communication_backend_name() == "nccl"
    assert found.is_bf16_supported()
    assert found.on_accelerator(torch.ones(1, device=DEVICE))
    assert not found.on_accelerator(torch.ones(1))


def case_states_that_are_moved_to_the_host_come_back() -> None:
    expected, _ = reference(steps=4)
    for stage in STAGES:
        _, engine = started(config(stage))
        losses = train(engine, 2)
        gc.collect()
        before = fake.bytes_held()
        states = engine._core.memory_use()["optimizer"]
        engine._core.offload_states()
        assert fake.bytes_held() <= before - states
        assert engine._core.memory_use()["optimizer"] == 0
        engine._core.reload_states()
        assert engine._core.memory_use()["optimizer"] == states
        losses += train(engine, 1, 2)
        engine._core.offload_states()
        losses += train(engine, 1, 3)  # brings them back by itself
        assert_close(losses, expected)


def case_nothing_that_the_real_cuda_would_punish() -> None:
    """Comes last: of all cases before."""
    assert not fake.violation(), fake.violation()
