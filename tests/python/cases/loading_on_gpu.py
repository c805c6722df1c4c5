"""zero.Init on a (fake) GPU, and its memory while a model comes into an engine."""

import fake_torch_cuda
from zerorun import device
from zerorun.shards.parameters import Loading
from zerorun.shards.shards import Policy, Shards

from cases.models import *

fake = fake_torch_cuda.installed()
WIDTH = 512


def case_zero_init_puts_its_parts_on_the_gpu() -> None:
    with Init():
        assert fake.made_current == [DEVICE]
        model = make()
    assert {value.device for value in model.parameters()} == {DEVICE}
    assert {value.ds_tensor.device for value in model.parameters()} == {DEVICE}
    engine, *_ = initialize(model, adamw(model), config=config(3))
    assert_close(train(engine, 2), reference(steps=2)[0])


def case_zero_init_keeps_what_is_offloaded_on_the_host() -> None:
    """A model that the GPUs together do not hold: they get one parameter at a time."""
    settings = config(3, {"offload_param": {"device": "cpu"}})
    expected = reference(steps=2)[0]
    for arguments in ({"config_dict_or_path": settings}, {"remote_device": "cpu"}):
        with Init(**arguments):
            model = make(Model)
        assert {value.device for value in model.parameters()} == {DEVICE}
        assert {value.ds_tensor.device for value in model.parameters()} == {torch.device("cpu")}
        with GatheredParameters(model.parameters()):
            assert {value.device for value in model.parameters()} == {DEVICE}
            assert all(value.numel() == value.ds_numel for value in model.parameters())
        engine, *_ = initialize(model, adamw(model), config=settings)
        assert_close(train(engine, 2), expected)
    with Init(config_dict_or_path=settings, remote_device="none"):
        model = make(Model)
    assert {value.ds_tensor.device for value in model.parameters()} == {DEVICE}


def case_ranks_that_a_scheduler_shows_the_same_gpu_are_named() -> None:
    if WORLD_SIZE == 1:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "0")  # as srun does where tasks share all GPUs
        patch.delenv("ZERORUN_SHARE_GPUS")
        model = make()
        text = "ranks 0 and 1 have the same GPU (PCI 0000:00:00), which NCCL refuses: show each"
        refuses(text, zerorun.initialize, model, adamw(model), config=config(3))


def large() -> nn.Module:
    """With parameters of several megabytes, of which none is much larger than the others."""
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))


LARGEST = 4 * WIDTH**2  # bytes
BUCKET = LARGEST // 2 + 2 * WIDTH  # bytes of a unit in bf16
SLACK = 1 << 16  # of what is not parameters


def now() -> int:
    fake.take_peak()
    return fake.take_peak()


def peak_of(start: Any, *given: Any, **options: Any) -> tuple[int, int]:
    """The most memory of a call meanwhile, and what is held by the engine in the end."""
    gc.collect()
    before = now()
    made = start(*given, **options)
    peak = fake.take_peak() - before
    gc.collect()
    held = now() - before
    engine = made[0] if isinstance(made, tuple) else made
    plan = engine._meter.figures.memory_plan()
    # What comes and goes with training is not there yet.
    states = sum(plan.values()) - plan.get("buckets", 0)
    engine.destroy()
    assert states <= held <= sum(plan.values()) + SLACK, (held, plan)
    return peak, held


class Rounding(zerorun.ZeroEngine):
    """As DeepSpeed's, whose masters are rounded, so that 16 bits go over."""

    policy = Policy(round_masters=True)


def case_the_peak_is_the_plan_and_the_largest_parameter() -> None:
    for stage in STAGES:
        configured = {"config": config(stage, **BF16)}
        keywords = {"stage": stage, "dtype": torch.bfloat16}
        gathered = BUCKET if stage == 3 else 0  # views of a bucket are made in its memory
        with torch.device("meta"):
            unset = large()
        for start, model, options, most in (
            (zerorun.initialize, make(large), configured, max(LARGEST, gathered)),
            (zerorun.shard, make(large), keywords, max(LARGEST, gathered)),
            (zerorun.shard, unset, keywords, LARGEST),  # waits in host memory
            (zerorun.initialize, make(large), configured | {"engine_class": Rounding}, BUCKET),
        ):
            peak, held = peak_of(start, model, optimizer=adamw(model), **options)
            assert held <= peak <= held + most + SLACK, (start, options, peak, held)


def case_a_model_that_is_on_the_gpu_goes_as_it_is_taken_over() -> None:
    take, held = Shards._take, []

    def measured(shards: Shards, parameter: nn.Parameter, reference: Any) -> None:
        nbytes, before = parameter.nbytes, now()
        take(shards, parameter, reference)
        held.append(before - now() - nbytes)

    for stage in STAGES:
        model = make(large)
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
            full = torch.OutOfMemoryError("no memory")
            with mock.patch.object(torch, "empty", side_effect=full):
                super().__init__(*arguments, **keywords)

    for stage in STAGES:
        model = make()
        model.register_buffer("constant", torch.ones(2))
        with mock.patch("zerorun.shards.shards.Loading", Refused):
            given = (initialize, model, adamw(model))
            raises(torch.OutOfMemoryError, "no memory", *given, config=config(stage))
        tensors = [*model.parameters(), model.constant]
        assert {tensor.device.type for tensor in tensors} == {"cpu"}
        assert torch.equal(loss_of(model, batch_of(0)), loss)


class Deriving(nn.Parameter):
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
    _, engine = started(config(3, {"overlap_comm": True}))
    train(engine, 3)
    memory = engine._shards.gather_hooks.memory
    acquire = memory._acquire
    for kind in (KeyboardInterrupt, ZeroDivisionError, RuntimeError):
        for number in (1, 2, 3):
            calls: list[int] = []

            def fails(bucket: int) -> int:
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
    site = os.path.join(os.path.dirname(zerorun.__file__), "compat", "site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [site, *sys.path])
        import deepspeed.comm
    made: list[Any] = []
    for version, bound in (("2.6.0", DEVICE), ("2.7.0", None), ("2.11.0+cu130", DEVICE)):
        fake.made_current.clear()
        with (
            mock.patch.object(dist, "init_process_group") as make_group,
            mock.patch.object(torch, "__version__", version),
        ):
            make_group.side_effect = lambda *_, **__: made.append(list(fake.made_current))
            deepspeed.comm.init_distributed()
        assert make_group.call_args.kwargs["device_id"] == bound
    assert made == [[DEVICE]] * 3


def case_nothing_that_the_real_cuda_would_punish() -> None:
    """Comes last: of all cases before."""
    assert not fake.violation(), fake.violation()
