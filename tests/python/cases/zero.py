"""zerorun.zero: partitioned parameters before and after initialize, and access to states."""

from zerorun import zero
from zerorun.model.partition import partition_of
from zerorun.model.private_partition import PrivatePartition
from zerorun.shards.shards import shards_of

from cases.models import *

EMPTY = torch.Size([0])


def case_init_partitions_every_module_as_it_is_made() -> None:
    plain = make()
    largest = 0
    with Init(config_dict_or_path={"zero_optimization": {"stage": 3}}):

        class Watched(Block):
            def __init__(self, width: int) -> None:
                super().__init__(width)
                nonlocal largest
                full = sum(p.untyped_storage().nbytes() for p in self.parameters())
                largest = max(largest, full)
                self.own = nn.Parameter(torch.ones(width))

        model = make(Model, seed=RANK)
        assert Watched(32).own.shape == EMPTY  # of a class that is defined here
    # A module's own parameters are full while its constructor runs, its children's are not.
    assert largest == 0
    for name, parameter in model.named_parameters():
        expected = dict(plain.named_parameters())[name]
        assert parameter.shape == EMPTY
        assert parameter.ds_shape == expected.shape
        assert parameter.ds_numel == expected.numel()
        assert parameter.partition_numel() <= expected.numel() // WORLD_SIZE + 1
        assert torch.equal(full(parameter), expected.detach())  # rank 0's
        assert parameter.shape == EMPTY


def both_states():
    """A parameter under Init, and one of an engine."""
    with Init():
        yield nn.Linear(6, 5).weight, None
    model, engine = started(config(3))
    yield model.blocks[0].up.weight, engine


def case_gathered_parameters_take_anything() -> None:
    for parameter, _ in both_states():
        parameter.mark = "kept"
        ordinary = nn.Parameter(torch.ones(3))
        with GatheredParameters([]):
            pass
        with GatheredParameters(p for p in [parameter, parameter, ordinary]):
            assert parameter.shape == parameter.ds_shape
            with GatheredParameters(parameter):
                pass
            assert parameter.shape == parameter.ds_shape
        assert (parameter.shape, ordinary.shape, parameter.mark) == (EMPTY, (3,), "kept")
        with GatheredParameters(parameter, enabled=False):
            assert parameter.shape == EMPTY


def case_parameters_may_have_another_order_on_each_rank() -> None:
    # As those of a set have: transformers gives one of what a checkpoint lacks.
    with Init():
        made = make()
    for model in (made, *(started(config(stage))[0] for stage in STAGES)):
        parameters = list(model.parameters())
        listed = parameters[::-1] if RANK else parameters
        with GatheredParameters(listed, modifier_rank=0), torch.no_grad():
            for number, parameter in enumerate(parameters):
                parameter.fill_(-1.0 if RANK else number)
        with GatheredParameters(listed):
            found = [parameter.unique().tolist() for parameter in parameters]
        assert found == [[number] for number in range(len(parameters))]
    for stage in STAGES:  # two engines, whose parameters have the same names
        parameters = [p for _ in range(2) for p in started(config(stage))[0].parameters()]
        listed = parameters[::-1] if RANK else parameters
        with GatheredParameters(listed, modifier_rank=0):
            pass


def case_constructors_change_layers_that_init_has_sharded() -> None:
    class Changed(nn.Module):
        def __init__(self, rank: int) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2)  # which sets the bias of a layer in it
            self.up, self.words = nn.Linear(4, 4), nn.Embedding(3, 4)
            self.twin = nn.Linear(4, 4)
            nn.init.orthogonal_(self.up.weight)
            self.up.bias.data.fill_(2.0)
            with torch.no_grad():
                self.words.weight[1].zero_()
                self.words.weight.mul_(3.0)
                self.twin.weight.copy_(self.up.weight)
            self.blocks = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 2))
            self.blocks.apply(functools.partial(fill, rank=rank))
            # Which asks for the dimensions of each.
            self.layer = nn.Transformer(4, 2, 1, 1, 4, batch_first=True)
            self.count = sum(p.numel() for p in self.parameters() if len(p) and p.size(-1))
            self.twin.bias.data = torch.full(self.up.bias.shape, 5.0)
            # More than stay full: those that one line uses, or used last, are among them.
            eights = (nn.ModuleList(nn.Linear(4, 4) for _ in range(8)) for _ in range(2))
            self.left, self.right = eights
            self.peak = max(layer.weight.abs().max().item() for layer in self.left)
            for left, right in zip(self.left, self.right, strict=True):
                left.weight.data.copy_(right.weight.data)
            self.joined = nn.Parameter(torch.cat([layer.weight.T for layer in self.right]))
            self.lstm = nn.LSTM(4, 4, 3)  # which takes its weights in a list
            self.joined.data[:2] = self.lstm(torch.ones(2, 4))[0].detach()
            self.copy, self.cast = nn.Parameter(self.up.weight), nn.Linear(3, 3).half()
            self.frozen = nn.Embedding.from_pretrained(self.words.weight)

    def fill(module: nn.Module, rank: int) -> None:
        if isinstance(module, nn.Linear):
            assert module.weight.shape == (module.out_features, module.in_features)
            nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(5))
            nn.init.constant_(module.bias, rank + 3.0)

    plain = make(lambda: Changed(0))
    with Init():
        model = make(lambda: Changed(RANK))
    assert {parameter.shape for parameter in model.parameters()} == {EMPTY}
    assert model.count == plain.count
    with GatheredParameters(model.parameters()):
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter.detach().cpu(), plain.get_parameter(name)), name


def case_only_the_modifiers_changes_are_kept() -> None:
    for parameter, _ in both_states():
        writer = WORLD_SIZE - 1
        with GatheredParameters(parameter, modifier_rank=writer), torch.no_grad():
            parameter.fill_(7.0 if writer == RANK else -1.0)
        with GatheredParameters(parameter):
            assert parameter.detach().unique().tolist() == [7.0]
            assert parameter.shape == parameter.ds_shape
        with GatheredParameters(parameter, modifier_rank=0):
            parameter.data = torch.full_like(parameter, 3.0)  # replaced, not written to
        assert full(parameter).unique().tolist() == [3.0]
        with contextlib.suppress(KeyError), GatheredParameters(parameter, modifier_rank=0):
            parameter.data.fill_(9.0)
            raise KeyError
        assert full(parameter).unique().tolist() == [3.0]
        shapes = pytest.raises(zerorun.ConfigError, match="its shape cannot change")
        with shapes, GatheredParameters(parameter, modifier_rank=0):
            parameter.data = torch.zeros(2, 2)
        assert parameter.shape == EMPTY


def case_a_change_reaches_the_master_copy() -> None:
    for stage in STAGES:
        model, _ = started(config(stage, bf16={"enabled": True}))
        target = model.blocks[0].up.weight
        value = torch.arange(target.numel() if stage < 3 else target.ds_numel) % 97 / 7
        value = value.view(128, 32)
        zero.safe_set_full_fp32_param(target, value)
        assert torch.equal(zero.safe_get_full_fp32_param(target).cpu(), value)
        assert torch.equal(full(target), value.bfloat16())


def case_copies_of_gathered_parameters_are_ordinary() -> None:
    for parameter, _ in both_states():
        with GatheredParameters(parameter):
            other = copy.deepcopy(parameter)
        assert other.shape == parameter.ds_shape
        assert not hasattr(other, "ds_numel")
    model, _ = started(config(3))
    with GatheredParameters(model.parameters()):
        block = copy.deepcopy(model.blocks[0])
    block(torch.zeros(1, 32, device=DEVICE))


def case_states_are_torchs() -> None:
    reference_model = make()
    optimizer = adamw(reference_model)
    for step in range(3):
        torch_step(reference_model, optimizer, step)
    optimizer.zero_grad()
    loss_of(reference_model, batch_of(3)).backward()
    expected = reference_model.blocks[1].up.weight
    for stage in STAGES:
        model, engine = started(config(stage))
        target = model.blocks[1].up.weight
        assert zero.safe_get_full_grad(target) is None
        train(engine, 3)
        assert zero.safe_get_full_grad(target) is None
        backward(engine, 3)
        param = zero.safe_get_full_fp32_param(target)
        for value, wanted in (
            (param, expected.detach()),
            (zero.safe_get_full_grad(target), expected.grad),
            (
                zero.safe_get_full_optimizer_state(target, "exp_avg"),
                optimizer.state[expected]["exp_avg"],
            ),
        ):
            assert value.device == DEVICE
            torch.testing.assert_close(value.cpu(), wanted, rtol=1e-4, atol=1e-6)
        zero.safe_set_full_optimizer_state(target, torch.ones(128, 32), "exp_avg")
        state = zero.safe_get_full_optimizer_state(target, "exp_avg")
        assert state.unique().tolist() == [1.0]
        zero.safe_set_local_fp32_param(target, zero.safe_get_local_fp32_param(target) + 1)
        torch.testing.assert_close(zero.safe_get_full_fp32_param(target), param + 1)
        if stage > 0:
            zero.safe_set_full_grad(target, torch.full((128, 32), 0.25))
            assert zero.safe_get_full_grad(target).unique().tolist() == [0.25]
            assert zero.safe_get_local_grad(target).unique().tolist() in ([0.25], [])
        engine.step()
        assert shards_of(target) is engine._shards
        engine.destroy()
        assert zero.safe_get_full_fp32_param(target) is None


def case_destroy_returns_all_bytes() -> None:
    for stage in STAGES:
        gc.collect()
        before = memory_of_process("RssShmem")
        model = make()
        engine, optimizer, *_ = initialize(model, adamw(model), config=config(stage))
        losses = train(engine, 3)
        assert WORLD_SIZE == 1 or memory_of_process("RssShmem") > before
        engine.destroy()
        engine.destroy()
        gc.collect()
        engine.communicator.barrier()
        assert memory_of_process("RssShmem") - before < 200_000, "only control blocks may stay"
        refuses("after destroy", lambda: engine._core.step_count)
        for parameter in model.parameters():
            assert type(parameter) is nn.Parameter
            kind = PrivatePartition if stage == 3 else type(None)
            assert isinstance(partition_of(parameter), kind)
        # The same model again, from where it was.
        engine, *_ = initialize(model, adamw(model), config=config(stage))
        assert train(engine, 1, first=3)[0] < losses[0]
        engine.destroy()
        del optimizer


def case_several_engines_one_without_optimizer() -> None:
    expected, _ = reference(steps=5)
    engines = [started(config(stage))[1] for stage in (3, 2)]
    judge, *rest = initialize(make(), config=config(3))
    assert rest == [None, None, None]
    first = loss_of(judge, batch_of(0)).item()
    losses = [[], []]
    for step in range(5):
        for engine, values in zip(engines, losses, strict=True):
            values += train(engine, 1, first=step)
        with torch.no_grad():
            assert loss_of(judge, batch_of(0)).item() == first
    for values in losses:
        assert_close(values, expected)
    refuses("no optimizer", judge.step)


def case_a_model_can_be_pickled(folder: Path) -> None:
    for stage in STAGES:
        model, engine = started(config(stage))
        path = folder / f"model{stage}.{RANK}"
        with GatheredParameters(model.parameters()):
            torch.save(model, path)
            expected = {name: value.clone() for name, value in model.state_dict().items()}
        engine.destroy()
        copy = torch.load(path, weights_only=False)
        state = copy.state_dict().items()
        assert all(torch.equal(value.cpu(), expected[name].cpu()) for name, value in state)
        assert torch.isfinite(loss_of(copy, batch_of(0)))
