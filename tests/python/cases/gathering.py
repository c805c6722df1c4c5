"""What becomes of changes within GatheredParameters, and of modules that are changed under Init."""

from torch._C import _len_torch_function_stack
from torch.optim.swa_utils import AveragedModel
from zerorun.communicator import world
from zerorun.hooks.module_call import ModuleCall
from zerorun.model.units import is_leaf

from cases.models import *
from cases.zero import EMPTY, both_states


def case_parameters_gather_lists_and_keep_changes_when_told_so() -> None:
    for parameter, engine in both_states():
        others = [] if engine is None else list(engine.module.blocks[0].parameters())
        listed = [parameter, *others]
        before = full(parameter)
        for kept in (False, True):
            parameter.all_gather(param_list=listed)
            assert [each.shape for each in listed] == [each.ds_shape for each in listed]
            with torch.no_grad():
                parameter.data.copy_(parameter * 2)  # on every rank
            parameter.partition(param_list=listed, has_been_updated=kept)
            parameter.partition()  # which is partitioned already
            assert [tuple(each.shape) for each in listed] == [EMPTY] * len(listed)
            assert torch.equal(full(parameter), before * 2 if kept else before)
        if engine is not None:
            train(engine, 1)


def case_pytorch_works_within_a_gather_as_outside() -> None:
    model, _ = started(config(3))
    copied = torch.compile(lambda x, y: x.clone().copy_(y), backend="eager", fullgraph=True)
    with GatheredParameters(model.head.weight, modifier_rank=0):
        x = torch.ones(2, 3)
        assert torch.equal(torch.vmap(lambda row: torch.zeros_like(row).copy_(row))(x), x)
        assert torch.equal(copied(torch.zeros(2, 3), x), x)
        assert _len_torch_function_stack() == 0


def case_only_parameters_are_gathered_and_none_is_none() -> None:
    model, _ = started(config(3))
    with GatheredParameters(None), GatheredParameters([model.head.weight, None], modifier_rank=0):
        assert model.head.weight.numel() > 0
    for module in (model.head, model.blocks):
        refuses("module.parameters()", GatheredParameters, module)


def case_changes_without_a_modifier_end_with_the_block() -> None:
    """Each rank merges an adapter of its own, and sees nothing of the others'."""
    for parameter, engine in both_states():
        before = full(parameter)
        for replace in (False, True):
            merged = (before + (RANK + 1)).to(DEVICE)
            with GatheredParameters(parameter), torch.no_grad():
                if replace:
                    parameter.data = merged.clone()
                else:
                    parameter += RANK + 1
                world().barrier()
                assert torch.equal(parameter.detach(), merged)
                if engine is not None:  # forward uses the merged values
                    up = engine.module.blocks[0].up
                    hidden = up(torch.ones(1, 32, device=DEVICE))
                    with GatheredParameters(up.bias):
                        torch.testing.assert_close(hidden[0], merged.sum(1) + up.bias)
                with GatheredParameters(parameter):
                    parameter.fill_(7.0)
                assert torch.equal(parameter.detach(), merged)
            assert torch.equal(full(parameter), before)

        def fails() -> None:
            with GatheredParameters(parameter), torch.no_grad():
                parameter.fill_(9.0)
                raise KeyError("inside")

        raises(KeyError, "inside", fails)
        with GatheredParameters(parameter):
            assert torch.equal(parameter.detach().cpu(), before)
            with GatheredParameters(parameter, modifier_rank=0), torch.no_grad():
                parameter.fill_(5.0)
            assert parameter.detach().unique().tolist() == [5.0]


def case_one_ranks_changes_reach_the_others_and_the_masters_at_every_stage() -> None:
    for stage in range(4):
        model, engine = started(config(stage, bf16={"enabled": True}))
        train(engine, 1)
        weight = model.head.weight
        with GatheredParameters([weight, model.blocks[0].norm.bias], modifier_rank=1):
            if RANK == WORLD_SIZE - 1:
                weight.data.fill_(3.0)
        assert full(weight).unique().tolist() == [3.0]
        assert safe_get_full_fp32_param(weight).unique().tolist() == [3.0]
        train(engine, 1)
        engine._core.parameter_hash()  # an error if copies differ
        with torch.no_grad():
            if stage < 3:
                weight.fill_(2.0)
        train(engine, 1)
        engine._core.parameter_hash()


def case_a_step_while_parameters_are_held_is_an_error() -> None:
    model, engine = started(config(3))
    backward(engine)
    with GatheredParameters(model.blocks[1].up.weight):
        refuses("parameters of blocks.1 are held full", engine.step)
    engine.step()
    assert engine.global_steps == 1


def case_a_moving_average_is_made_within_a_gather() -> None:
    for under_init in (False, True):
        plain = make()
        basic, expected = adamw(plain), AveragedModel(plain)
        with Init(enabled=under_init):
            model = make()
        if under_init:
            empty = AveragedModel(model)  # as empty as the model: nothing else would tell
            refuses("AveragedModel: ", empty.update_parameters, model)
        with GatheredParameters(model.parameters()):
            average = AveragedModel(model)
        engine, *_ = initialize(model, adamw(model), config=config(3))
        for step in range(3):
            torch_step(plain, basic, step)
            expected.update_parameters(plain)
            train(engine, 1, first=step)
            with GatheredParameters(model.parameters()):
                average.update_parameters(model)
        for found, wanted in zip(average.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(found.cpu(), wanted, rtol=1e-3, atol=1e-4)


def case_copies_under_init_are_whole() -> None:
    with Init(dtype=torch.float16):
        with Init():  # the inner one counts
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
            encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        outer = nn.Linear(4, 4)
    assert (layer.linear1.weight.dtype, outer.weight.dtype) == (torch.float32, torch.float16)
    for name, parameter in encoder.named_parameters():
        original = layer.get_parameter(name.split(".", 2)[2])
        assert parameter.shape == EMPTY
        with GatheredParameters([parameter, original]):
            assert torch.equal(parameter, original)
    first, second = (part.linear1.weight for part in encoder.layers)
    with GatheredParameters(first, modifier_rank=0), torch.no_grad():
        first.zero_()
    assert full(second).abs().sum() > 0


class Recomputed(nn.Module):
    """Blocks with a frozen part, as a model with adapters has them, whose forward is recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 8)  # so a block is the last one of a backward
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(2)
        )
        for block in self.blocks:
            block[:2].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.last(x).square().mean()


class Together(Recomputed):
    """One recomputation of all, at whose end only the last block is in its backward."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(self.run, self.last(x), use_reentrant=False)).square().mean()


def case_frozen_parameters_are_full_for_a_recomputation() -> None:
    rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    for kind in (Recomputed, Together):
        _, expected = reference(
            kind=kind, steps=3, clip=math.inf, loss_at=lambda each, _: each(rows)
        )
        model, engine = started(config(3, gradient_clipping=0.0), kind)
        for _ in range(3):
            backward(engine, loss_at=lambda each, _: each(part_of(rows).to(DEVICE)))
            assert not any(unit.available for unit in engine._shards.gather_hooks.units)
            engine.step()
        with GatheredParameters(model.parameters()):
            found, wanted = ([p.cpu() for p in each.parameters()] for each in (model, expected))
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def case_leaf_modules_are_small() -> None:
    """A block has 64 + 4,224 + 4,128 elements in three layers and itself: 2,104 each."""

    def model_with_more() -> nn.Module:
        model = Model()
        model.unused = nn.Linear(32, 1024)  # so that the model as a whole is not fine-grained
        return model

    blocks = [f"blocks.{index}" for index in range(3)]
    for key, value, leaves in (
        ("stage3_module_granularity_threshold", 0, []),
        ("stage3_module_granularity_threshold", 2103, []),
        ("stage3_module_granularity_threshold", 2104, blocks),
    ):
        model, engine = started(config(3, {key: value}), model_with_more)
        assert [name for name, module in model.named_modules() if is_leaf(module)] == leaves
        train(engine, 1)


def case_sanity_checks_refuse_changes_that_would_be_lost() -> None:
    settings = config(3, {"enable_sanity_checks": True})
    with Init(config=settings):
        model = make()
    weight = model.blocks[0].up.weight

    def change() -> None:
        with GatheredParameters(model.blocks[0].parameters()):
            if RANK == 0:  # all ranks raise
                weight.data.mul_(2)

    def change_nothing() -> None:
        with GatheredParameters(weight), torch.no_grad():
            weight.mul_(1)

    for under_init in (True, False):  # then of an engine
        reading = GatheredParameters(weight)
        with reading:
            before = weight.detach().clone()
        with pytest.raises(KeyError), reading:
            raise KeyError
        for changing in (change, change_nothing):
            raises(RuntimeError, "in-place modification of a parameter of shape", changing)
        with GatheredParameters(weight, modifier_rank=0):
            assert torch.equal(weight, before)
            weight.data.add_(1)
        with reading:  # once more
            assert torch.equal(weight, before + 1)
        if under_init:
            initialize(model, adamw(model), config=settings)


def case_the_own_part_is_written_where_it_is_kept() -> None:
    """`ds_tensor.data = values`, which would otherwise reach a tensor that nobody reads."""
    for parameter, _ in both_states():
        own = parameter.ds_tensor
        assert type(own * 2) is torch.Tensor
        for late in range(2):  # the rank that is late is not read too early, nor the other too late
            time.sleep(0.05 * (late == RANK))
            own.data = torch.full_like(own, 3.0 + late)
            own.data += 1
            assert full(parameter).unique().tolist() == [4.0 + late]
            own.data = torch.full_like(own, -1.0)
        refuses("cannot be replaced", setattr, own, "data", torch.zeros(own.numel() + 1))


class Regularised(Model):
    """Gathers what it regularises itself, as peft's AdaLoRA does."""

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, penalty = super().forward(tokens), 0.0
        for block in self.blocks:
            with GatheredParameters(block.up.weight, fwd_module=self):
                product = block.up.weight.T @ block.up.weight
            penalty += torch.norm(product - torch.eye(len(product), device=product.device))
        return logits, penalty


def case_parameters_gathered_for_the_module_that_is_running() -> None:
    def loss_with_penalty(model: nn.Module, step: int) -> torch.Tensor:
        tokens = batch_of(step).to(next(model.parameters()).device)
        logits, penalty = model(tokens[:, :-1])
        target = tokens[:, 1:].flatten()
        return nn.functional.cross_entropy(logits.flatten(0, 1), target) + 0.01 * penalty

    for kind in (Regularised, lambda: nn.Sequential(Regularised())):
        expected, _ = reference(kind=kind, steps=3, loss_at=loss_with_penalty)
        model, engine = started(config(3), kind)
        losses = train(engine, 3, loss_at=lambda _, step: loss_with_penalty(model, step))
        assert_close(losses, expected)
        assert all(parameter.numel() == 0 for parameter in model.parameters())


def case_a_full_tensor_has_a_backward() -> None:
    tokens, begin_backward = batch_of(0), ModuleCall.begin_backward

    def penalized(model: nn.Module, full: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        penalty = sum(full(parameter).square().sum() for parameter in model.parameters())
        return 0.1 * penalty + loss_of(model, tokens)

    plain = make().to(DEVICE)
    penalized(plain, torch.clone).backward()
    for stage in STAGES:
        model, _ = started(bare_config() if stage == 3 else config(stage))
        penalized(model, full_tensor).backward()
        for own, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert stage < 3 or own.numel() == 0
            found = safe_get_full_grad(own)
            torch.testing.assert_close(found, other.grad, rtol=1e-4, atol=1e-6)
        begun = set()
        for _ in range(3):  # the graph of one step lives until the next one's is made
            watch = {"autospec": True, "side_effect": begin_backward}
            with mock.patch.object(ModuleCall, "begin_backward", **watch) as begin:
                loss = penalized(model, full_tensor)
                loss.backward()
            begun.add(begin.call_count)
        assert len(begun) == 1
    refuses("expected a parameter", full_tensor, torch.ones(1))
    with Init(config_dict_or_path=config(3)):
        layer = nn.Linear(4, 4)
    refuses("belongs to no engine", full_tensor, layer.weight)


def case_what_is_written_outside_of_a_gather_is_told() -> None:
    model = make()
    engine = kept(initialize(model, adamw(model), config=config(3)))[0]
    parameters = list(model.parameters())

    def stepped() -> list[str]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            train(engine, 1)
        return [str(each.message) for each in told]

    for rank in (0, None):  # without one, changes end with the gather
        with GatheredParameters(parameters, modifier_rank=rank), torch.no_grad():
            parameters[-1].mul_(2)
        assert not stepped()
    for parameter in parameters:
        nn.init.normal_(parameter)
    (text,) = stepped()
    assert f"one of {len(parameters)}, was written where stage 3 drops it" in text
    assert not stepped()


def case_parameters_without_elements_train_within_init() -> None:
    """They are as empty as one that is not gathered."""

    class Hole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(0, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ self.weight.T).sum()

    class Holey(Hole):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.none = nn.Linear(4, 4), Hole()
            assert self.none.weight.shape == (0, 4)
            self.apply(lambda module: None)
            self.copy = nn.Parameter(self.none.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.body(x)
            return hidden.square().sum() + self.none(hidden) + super().forward(hidden)

    inputs, curves = torch.ones(2, 4), []
    for inside in (False, True):
        torch.manual_seed(0)
        with Init(enabled=inside):
            model = Holey()
        with GatheredParameters(list(model.parameters())):
            assert model.weight.shape == model.none.weight.shape == (0, 4)
        engine, *_ = initialize(model, adamw(model), config=config(3))
        curves.append(train(engine, 3, loss_at=lambda engine, _step: engine(inputs)))
        assert curves[0][2] < curves[0][0]
        found = engine.full_state_dict()
        assert RANK > 0 or found["weight"].shape == found["none.weight"].shape == (0, 4)
    assert curves[0] == curves[1]
