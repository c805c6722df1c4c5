"""Steps of an optimizer that no engine was given, with parameters that are an engine's; and of
DeepSpeed's without an engine, against torch's and formulas."""

import deepspeed
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.lamb import FusedLamb
from deepspeed.ops.lion import DeepSpeedCPULion

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


def case_cpu_adam_alone_keeps_fp32_states() -> None:
    calls = []
    for dtype in (torch.float32, torch.bfloat16):
        for amsgrad in (False, True):
            for mode in (False, True):
                values = torch.linspace(-1, 1, 8, dtype=dtype)
                ours, plain = torch.nn.Parameter(values.clone()), torch.nn.Parameter(values.float())
                options = {"weight_decay": 0.1, "amsgrad": amsgrad, "lr": 1e-2}
                own = DeepSpeedCPUAdam([ours], adamw_mode=mode, **options)
                own.register_step_post_hook(lambda *_: calls.append(1))
                kind = torch.optim.AdamW if mode else torch.optim.Adam
                theirs = kind([plain], **options)
                for step in range(3):
                    ours.grad = torch.full((8,), 0.5 - step, dtype=dtype)
                    plain.grad = ours.grad.float()
                    own.step()
                    theirs.step()
                    plain.data = plain.data.to(dtype).float()
                torch.testing.assert_close(ours.float(), plain)
                states = own.state[ours]
                assert states.pop("step") == 3
                assert {state.dtype for state in states.values()} == {torch.float32}
                torch.testing.assert_close(states["exp_avg_sq"], theirs.state[plain]["exp_avg_sq"])
    assert len(calls) == 3 * 8
    half = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    tiny = torch.nn.Parameter(torch.ones(4, dtype=torch.half))  # eps and squares are 0 in fp16
    tiny.grad = torch.full_like(tiny, 1e-6)
    FusedAdam([tiny], lr=0.5).step()
    assert_close(tiny.tolist(), [0.5] * 4, tolerance=2e-2)
    narrow = DeepSpeedCPUAdam([half], fp32_optimizer_states=False)
    half.grad = torch.ones_like(half)
    narrow.step()
    assert narrow.state[half]["exp_avg"].dtype == torch.bfloat16
    whole = torch.nn.Parameter(torch.ones(2))
    whole.grad = torch.full_like(whole, 0.5)
    FusedAdam([whole], lr=0.25, bias_correction=False).step()
    change = 0.25 * 0.05 / math.sqrt(0.001 * 0.25)
    assert_close(whole.tolist(), [1 - change] * 2)


def case_lion_lamb_and_adagrad_step_alone() -> None:
    turned = torch.randn(6, 5).t()  # not contiguous
    value = torch.nn.Parameter(turned.clone())
    lion = DeepSpeedCPULion([value], lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    expected, mean = turned.clone(), torch.zeros_like(turned)
    for _ in range(3):
        value.grad = torch.randn(5, 6)
        lion.step()
        expected.mul_(1 - 1e-3).sub_(1e-2 * torch.sign(mean * 0.9 + value.grad * 0.1))
        mean.mul_(0.99).add_(value.grad, alpha=0.01)
    torch.testing.assert_close(value.data, expected)
    torch.testing.assert_close(lion.state[value]["exp_avg"], mean)
    assert lion.state[value]["step"] == 3
    start = torch.randn(40)
    value, plain = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    adagrad, torchs = DeepSpeedCPUAdagrad([value]), torch.optim.Adagrad([plain])
    for _ in range(3):
        given = torch.randperm(40)[:4].sort().values[None], torch.randn(4), (40,)
        value.grad = torch.sparse_coo_tensor(*given, check_invariants=True).coalesce()
        plain.grad = value.grad.to_dense()
        adagrad.step()
        torchs.step()
    torch.testing.assert_close(value, plain)
    torch.testing.assert_close(adagrad.state[value]["exp_avg_sq"], torchs.state[plain]["sum"])
    value = torch.nn.Parameter(start.clone())
    lamb = FusedLamb([value], lr=1e-2, eps=1e-6, weight_decay=0.1, eps_inside_sqrt=True)
    assert lamb.get_lamb_coeffs() == []
    value.grad = torch.randn(40)
    lamb.step()
    direction = 0.1 * value.grad / (0.001 * value.grad.square() + 1e-6).sqrt() + 0.1 * start
    ratio = (start.norm() / direction.norm()).clamp(0.01, 10).item()
    rate = 1e-2 * math.sqrt(0.001) / 0.1
    torch.testing.assert_close(value.data, start - rate * ratio * direction)
    assert_close(lamb.get_lamb_coeffs(), [ratio])
    value.data.zero_()  # without a norm there is no ratio
    copy.deepcopy(lamb).step()
    lamb.step()
    assert lamb.get_lamb_coeffs() == [1.0]
