"""Steps of an optimizer that no engine was given, with parameters that are an engine's."""

import collections

import deepspeed

from cases.models import *

TEXT = "AdamW.step: its parameters are an engine.s"


def values_of(engine: zerorun.ZeroEngine) -> list[torch.Tensor]:
    return [value for _, value in engine.iter_full_parameters()]


def case_a_step_that_would_train_nothing_is_an_error() -> None:
    """Programs for FSDP2 make the optimizer after they have sharded the model."""
    for stage in STAGES:
        model = make()
        engine = shard(model, stage=stage)
        before, optimizer = values_of(engine), adamw(model)
        own_loss(model, 0).backward()
        with pytest.raises(zerorun.ConfigError, match=TEXT):
            optimizer.step()
        assert all(map(torch.equal, before, values_of(engine)))


def case_within_backward_it_is_an_error_before_ranks_part() -> None:
    """There the gradient is that of one rank."""
    for stage in STAGES:
        model = make()
        engine = shard(model, stage=stage, optimizer=adamw(model))
        before, last = values_of(engine), [*model.parameters()][-1]
        other = torch.optim.AdamW([last], lr=1e-2)
        last.register_post_accumulate_grad_hook(lambda _: other.step())
        with pytest.raises(zerorun.ConfigError, match=TEXT):
            own_loss(model, 0).backward()
        assert all(map(torch.equal, before, values_of(engine)))


def case_what_trains_something_steps_on() -> None:
    """The engine's own optimizers, and those of parameters that are no engine's, or were that of
    one that was destroyed."""
    model, head = make(), nn.Linear(3, 3)
    engine = shard(model, stage=2, optimizer=adamw(model))
    both = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    before = head.weight.detach().clone()
    (own_loss(model, 0) + head(torch.ones(3)).sum()).backward()
    with warnings.catch_warnings(action="error"):
        both.step()
        engine.optimizer.step()
    assert not torch.equal(head.weight, before)
    engine.destroy()
    whole_loss(model, 0).backward()
    with warnings.catch_warnings(action="error"):
        both.step()


def case_deepspeed_scripts_find_the_average_at_stage_0_and_are_warned_elsewhere() -> None:
    for stage in (0, 1, 3):
        model = make()
        made = deepspeed.initialize(model=model, optimizer=adamw(model), config=config(stage))
        engine = kept(made)[0]
        other = adamw(model)
        engine.backward(own_loss(engine, 0))
        if stage > 0:
            with pytest.warns(UserWarning, match="AdamW.step changes nothing"):
                other.step()
        with warnings.catch_warnings(action="error"):
            (engine if stage > 0 else other).step()


def case_without_an_optimizer_each_rank_has_its_gradients() -> None:
    """DeepSpeed scripts may average them."""
    for stage in range(4):
        model = make()
        engine = kept(deepspeed.initialize(model=model, config=config(stage)))[0]
        engine.backward(own_loss(engine, 0))
        if stage == 3:  # parameters are empty
            with pytest.raises(zerorun.ConfigError, match=TEXT):
                adamw(model).step()
            continue
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            adamw(model).step()
        assert "no optimizer, so gradients are each rank's own" in str(told[0].message)


def case_parameters_that_the_engines_optimizer_lacks_have_each_ranks_gradients() -> None:
    """A program's own Muon may average them."""
    for stage in range(4):
        model = make()
        block, others = model.blocks[0], [model.head.weight]
        shard(model, stage=stage, optimizer=torch.optim.AdamW(others))
        own_loss(model, 0).backward()
        with pytest.warns(UserWarning, match="has other parameters in its optimizer"):
            torch.optim.SGD(block.parameters(), lr=0.1).step()


def case_those_that_an_engine_has_left_step_on() -> None:
    model = make()
    engine, *_ = zerorun.initialize(model, adamw(model), config=config(2))
    del engine, _
    gc.collect()
    whole_loss(model, 0).backward()
    with warnings.catch_warnings(action="error"):
        adamw(model).step()


class Wrapper(torch.optim.Optimizer):
    """Steps the one that it has, as Lookahead does."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        super().__init__(base.param_groups, {})
        self.base: Any = base

    def step(self, closure: Any = None) -> None:
        self.base.step(closure)


class Container(Wrapper):
    """Steps all that it has, as torchtitan's does."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        super().__init__(base)
        self.base = [base]

    def step(self, closure: Any = None) -> None:
        for each in self.base:
            each.step(closure)


def case_the_given_optimizer_may_be_wrapped_and_reset() -> None:
    for stage in STAGES:
        model = make()
        optimizer = adamw(model)
        engine = shard(model, stage=stage, optimizer=optimizer)
        frozen = model.blocks[0].up.weight.requires_grad_(False)
        others = Wrapper(optimizer), Container(optimizer), torch.optim.SGD([frozen], lr=0.1)
        for each in (*others, optimizer):
            before = values_of(engine)
            own_loss(model, 0).backward()
            each.step()
            optimizer.zero_grad()
            trained = not all(map(torch.equal, before, values_of(engine)))
            assert trained == (not isinstance(each, torch.optim.SGD))
            optimizer.state = collections.defaultdict(dict)
