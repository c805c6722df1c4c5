"""How a model's values come into an engine: the ranks' meeting, failures on the way, memory."""

from zerorun import host_memory
from zerorun.shards.parameters import Loading

from cases.models import *


def case_the_ranks_meet_without_a_collective_of_pytorchs_group() -> None:
    """Comes first. NCCL's would be made on GPU 0 of every rank that has not chosen one."""

    def make_silent(_store: Any, rank: int, size: int, _timeout: Any) -> dist.ProcessGroup:
        return dist.ProcessGroup(rank, size)  # in which every collective is an error

    dist.Backend.register_backend("silent", make_silent, devices=["cpu"])
    dist.init_process_group("silent")
    if WORLD_SIZE > 1:
        with pytest.raises(RuntimeError):
            dist.broadcast_object_list([""])
    made_current: list[torch.device] = []
    asked_with: list[list[torch.device]] = []
    get_store = dist.distributed_c10d._get_default_store

    def store() -> Any:
        asked_with.append(list(made_current))
        return get_store()

    with (
        mock.patch.object(torch.cuda, "set_device", made_current.append),
        mock.patch.object(dist.distributed_c10d, "_get_default_store", store),
    ):
        _, engine = started(config(STAGES[-1]))
    assert asked_with == [[DEVICE] if DEVICE.type == "cuda" else []]
    assert_close(train(engine, 2), reference(steps=2)[0])
    engine.destroy()
    dist.destroy_process_group()


def case_rank_zero_that_does_not_come_is_named() -> None:
    if WORLD_SIZE > 1:
        connect, text = communicator._connect_through, "waited 0.1 s for rank 0's address"
        raises(zerorun.CommError, text, connect, dist.HashStore(), 1, 2, 0.1)


class Mixed(Model):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[0].up.weight.requires_grad = False
        down = self.blocks[1].down.weight
        down.data = down.data.t().contiguous().t()
        both = torch.cat([self.blocks[2].up.bias.data, self.blocks[1].up.bias.data])
        self.blocks[2].up.bias.data, self.blocks[1].up.bias.data = both.chunk(2)
        turned = torch.randn(3, dtype=torch.cfloat).conj()  # a view that is not its memory's values
        self.turned = nn.Parameter(turned, requires_grad=False)
        self.register_buffer("constant", torch.ones(2))


def case_values_are_rank_zeros_bit_by_bit() -> None:
    expected = [p.clone() for p in make(Mixed).parameters()]
    for stage, keys in itertools.product(STAGES, ({}, BF16)):
        model, _ = started(config(stage, **keys), Mixed, seed=RANK)
        for parameter, values in zip(model.parameters(), expected, strict=True):
            master = safe_get_full_fp32_param(parameter)
            assert not parameter.requires_grad or torch.equal(master.cpu(), values)
            assert torch.equal(full(parameter), values.to(parameter.dtype))


@contextlib.contextmanager
def fails_at(number: int) -> Iterator[None]:
    """The load of that parameter, counted from 1."""
    load, count = Loading._load, itertools.count(1)

    def counted(loading: Loading, parameter: nn.Parameter) -> None:
        if next(count) == number:
            raise OSError("injected")
        load(loading, parameter)

    with mock.patch.object(Loading, "_load", counted), pytest.raises(OSError, match="injected"):
        yield


def case_a_model_is_whole_after_a_load_that_failed_in_the_middle() -> None:
    loss = loss_of(make(), batch_of(0))
    kinds = ({}, 0.0), (BF16, 1e-2)
    for stage, (keys, tolerance), number in itertools.product(STAGES, kinds, (1, 2, 6)):
        model = make()
        with fails_at(number):
            initialize(model, adamw(model), config=config(stage, **keys))
        found = {(p.device.type, p.dtype) for p in model.parameters()}
        assert found == {("cpu", torch.float32)}, (stage, number)
        error = abs(loss_of(model, batch_of(0)) - loss)
        assert error <= tolerance * loss, (stage, keys, number)
        engine, *_ = initialize(model, adamw(model), config=config(stage))
        if not keys:
            assert_close(train(engine, 2), reference(steps=2)[0])


def case_zero_inits_model_is_partitioned_after_a_load_that_failed() -> None:
    for number in (1, 2, 6):
        with Init():
            model = make()
        with fails_at(number):
            initialize(model, adamw(model), config=config(3))
        assert all(p.numel() == 0 and hasattr(p, "ds_tensor") for p in model.parameters())
        expected = [parameter.detach() for parameter in make().parameters()]
        assert_same([full(parameter) for parameter in model.parameters()], expected)


def case_weights_are_made_contiguous_once() -> None:
    contiguous = torch.Tensor.contiguous
    values = torch.arange(64.0).view(8, 8).t()
    for given, kind in ((values, None), (torch.eye(8).to_sparse(), RuntimeError)):
        with torch.device("meta"):
            model = nn.Linear(8, 8, bias=False)
        weights = {"weight": given} if RANK == 0 else {}
        copied: list[torch.Size] = []

        def counted(tensor: torch.Tensor) -> torch.Tensor:
            copied.extend([tensor.shape] * (not tensor.is_contiguous()))
            return contiguous(tensor)

        change = mock.patch.object
        with change(host_memory, "PIECE", 16), change(torch.Tensor, "contiguous", counted):
            if kind is not None:
                with pytest.raises(kind if RANK == 0 else zerorun.Error, match=r"ontiguous|rank 0"):
                    shard(model, weights=weights, timeout=20.0)
                again = "is, or is any more after a call that failed"
                raises(ValueError, again, shard, model, weights={})
                return
            shard(model, weights=weights)
        assert len(copied) == (RANK == 0)
        assert torch.equal(full(model.weight), values)


class Memory(bytearray):
    """Memory of a parameter, of which one can tell whether it is still there."""


def in_memory(model: nn.Module) -> list[weakref.ref[Memory]]:
    memories = []
    with torch.no_grad():
        for parameter in model.parameters():
            memory = Memory(parameter.nbytes)
            values = torch.frombuffer(memory, dtype=parameter.dtype).view(parameter.shape)
            parameter.data = values.copy_(parameter)
            memories.append(weakref.ref(memory))
    return memories


def case_no_host_memory_for_a_value_twice() -> None:
    """When the next parameter is loaded, the memory of those before is gone."""
    load = Loading._load
    for start, stage in itertools.product((initialize, shard), STAGES):
        model = make()
        memories = in_memory(model)
        there: list[int] = []

        def alive() -> int:
            return sum(memory() is not None for memory in memories)

        def counting(loading: Loading, parameter: nn.Parameter) -> None:
            there.append(alive())
            load(loading, parameter)

        options = {"stage": stage, "dtype": torch.bfloat16}
        if start is initialize:
            options = {"config": config(stage, **BF16)}
        with mock.patch.object(Loading, "_load", counting):
            start(model, optimizer=adamw(model), **options)
        assert [*there, alive()] == list(range(len(memories), -1, -1)), (start, stage)
        end_engines()
