"""Optimizers and schedulers of torch's on sharded parameters, against torch alone."""

from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from cases.models import *


def case_rates_that_differ_among_ranks_are_told() -> None:
    """A scheduler may follow a loss that is each rank's own."""
    for stage in STAGES:
        model = make()
        optimizer = two_groups(model)
        engine, *_ = initialize(model, optimizer, config=config(stage))
        often = mock.patch.object(zerorun.engine, "_CHECK_EVERY", 2)
        with warnings.catch_warnings(record=True) as caught, often:
            warnings.simplefilter("always")
            train(engine, 2)
            assert not caught
            optimizer.param_groups[1]["lr"] *= 1 + RANK
            train(engine, 2)
        told = [str(warning.message) for warning in caught]
        differ = "learning rates differ among the ranks: from 0.02 to 0.04 in parameter group 1"
        assert len(told) == (WORLD_SIZE > 1)
        assert all(text.startswith(differ) for text in told)


def two_groups(model: nn.Module) -> torch.optim.AdamW:
    bias = [p for n, p in model.named_parameters() if n.endswith("bias")]
    rest = [p for n, p in model.named_parameters() if not n.endswith("bias")]
    groups = [{"params": rest, "weight_decay": 0.5}, {"params": bias, "lr": 2e-2}]
    return torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.0)


def adagrad(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(model.parameters(), lr=1e-2)


def case_optimizers_of_torchs_run_on_shards() -> None:
    for make_optimizer in (sgd, functools.partial(adamw, amsgrad=True), two_groups, adagrad):
        expected, _ = reference(make_optimizer, Scaled)
        for stage in STAGES:
            model = make(Scaled)
            optimizer = make_optimizer(model)
            engine, returned, *_ = initialize(model, optimizer, config=config(stage))
            assert returned.optimizer is optimizer
            assert_close(train(engine), expected)


class Around(torch.optim.Optimizer):
    """Has another optimizer's states and hyperparameters, and nothing else of torch's."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.param_groups, self.defaults = inner, inner.param_groups, inner.defaults

    @property
    def state(self) -> Any:
        return self.inner.state

    def step(self, closure: None = None) -> None:
        self.inner.step()


class Settable(Around):
    @Around.state.setter
    def state(self, value: Any) -> None:
        self.inner.state = value


def case_states_may_be_a_property_of_the_class() -> None:
    expected, _ = reference(sgd)
    for stage in STAGES:
        model = make()
        given = Settable(sgd(model))
        before = given.state
        engine, optimizer, *_ = initialize(model, given, config=config(stage))
        assert_close(train(engine), expected)
        assert set(given.state) == set(model.parameters())
        assert optimizer.state_dict()["state"].keys() == given.state_dict()["state"].keys()
        engine.destroy()
        assert given.state is before
    refuses("Around.state cannot be set", initialize, model, Around(sgd(model)), config=config(1))
    loss_of(model, batch_of(0)).backward()  # the model is as it was


def case_hooks_of_all_optimizers_are_called_once_a_step() -> None:
    calls: list[str] = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: calls.append("before")),
        register_optimizer_step_post_hook(lambda *_: calls.append("after")),
    ]
    try:
        for make_optimizer in (adamw, sgd):
            for stage in STAGES:
                model = make()
                basic = make_optimizer(model)
                engine, optimizer, *_ = initialize(model, basic, config=config(stage))
                for own in (optimizer, basic):
                    own.register_step_pre_hook(lambda *_: calls.append("own before"))
                    own.register_step_post_hook(lambda *_: calls.append("own after"))
                for step in (engine.step, basic.step, optimizer.step):
                    assert calls == []  # of steps in which an optimizer was tried, too
                    backward(engine)
                    step()
                    assert calls == ["before", *["own before"] * 2, *["own after"] * 2, "after"]
                    calls.clear()
    finally:
        for handle in handles:
            handle.remove()


def case_a_step_may_compute_its_loss_itself() -> None:
    expected, _ = reference()
    for stage in STAGES:
        model = make()
        optimizer = adamw(model)
        engine, returned, *_ = initialize(model, optimizer, config=config(stage))
        losses = []
        for number in range(STEPS):

            def closure(number: int = number) -> torch.Tensor:
                optimizer.zero_grad()
                return backward(engine, number)

            with torch.no_grad():
                losses.append((optimizer, returned)[number % 2].step(closure))
        assert_close([mean(loss, engine) for loss in losses], expected)


def case_the_configurations_optimizer_may_have_default_values() -> None:
    for kind in ("Adam", "AdamW", "SGD", "Adagrad", "Lion", "Lamb", "Muon"):
        engine, *_ = initialize(make(), config=config(2, optimizer={"type": kind}))
        train(engine, 1)


class Averaging(torch.optim.SGD):
    """Evaluates a moving average of the parameters that it trains, as schedule-free ones do."""

    @torch.no_grad()
    def _mode(self, training: bool) -> None:
        for group in self.param_groups:
            for p in group["params"] if group.get("training", True) != training else ():
                if p in self.state:
                    other = self.state[p]["other"]
                    trained = p.clone()
                    p.copy_(other)
                    other.copy_(trained)
            group["training"] = training

    def train(self) -> None:
        self._mode(True)

    def eval(self) -> None:
        self._mode(False)

    @torch.no_grad()
    def step(self) -> None:
        assert self.param_groups[0]["training"]
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p].setdefault("other", p.clone()).lerp_(p, 0.1)


def case_optimizers_that_evaluate_other_parameters_than_they_train(folder: Path) -> None:
    def run(model: nn.Module, handle: Averaging, step_at: Callable[[int], float], first: int):
        for step in range(first, first + 6):
            handle.train()
            yield step_at(step)
            handle.eval()
            with torch.no_grad():
                yield loss_of(model, batch_of(100)).item()

    model = make()
    optimizer = Averaging(model.parameters(), lr=0.5)
    plain = functools.partial(torch_step, model, optimizer)
    expected = [*run(model, optimizer, plain, 0), *run(model, optimizer, plain, 6)]
    for stage in STAGES:
        found = []
        for first in (0, 6):  # the second half by another engine
            model = make(seed=first)
            optimizer = Averaging(model.parameters(), lr=0.5)
            engine, returned, *_ = initialize(model, optimizer, config=config(stage))
            if first:
                engine.load_checkpoint(folder / str(stage))
            own = functools.partial(lambda engine, step: train(engine, 1, step)[0], engine)
            found += run(engine, returned if first else optimizer, own, first)
            engine.save_checkpoint(folder / str(stage))
        assert_close(found, expected)
        assert not hasattr(torch.optim.SGD(model.parameters()), "train")
        if stage < 3:  # what the program writes is there after both changes
            bias = next(p for p in model.parameters() if p.dim() == 1)
            written = bias.detach().add_(1).clone()
            returned.train()
            returned.eval()
            torch.testing.assert_close(bias.detach(), written)


def case_hooks_of_the_given_optimizer_are_called() -> None:
    for kind in (torch.optim.AdamW, torch.optim.SGD):
        for stage in STAGES:
            model = make()
            basic = kind(model.parameters(), lr=1e-3)
            settings = config(stage, gradient_accumulation_steps=2)
            engine, optimizer, *_ = initialize(model, basic, config=settings)
            calls: list[str] = []
            basic.register_step_pre_hook(lambda *_, calls=calls: calls.append("before"))
            basic.register_step_post_hook(lambda *_, calls=calls: calls.append("after"))
            basic.register_state_dict_pre_hook(lambda _, calls=calls: calls.append("saving"))
            basic.register_state_dict_post_hook(lambda _, state: {**state, "own": 7})
            basic.register_load_state_dict_pre_hook(
                lambda _, state, calls=calls: calls.append(f"loading {state.pop('own')}")
            )
            basic.register_load_state_dict_post_hook(lambda _, calls=calls: calls.append("loaded"))
            for step in (engine.step, basic.step, optimizer.step, engine.step):
                backward(engine)
                step()
            assert calls == ["before", "after"] * 2, (kind, stage, calls)
            saved = optimizer.state_dict()
            assert saved["own"] == 7
            basic.load_state_dict(saved)
            assert calls[4:] == ["saving", "loading 7", "loaded"]
            if kind is torch.optim.AdamW:  # a rule of the core's
                for _ in range(2):
                    engine.backward(loss_of(engine, part_of(batch_of(0))) * float("nan"))
                    engine.step()
                assert engine.skipped_steps == 1
                assert calls[7:] == ["before"]


def case_a_rule_of_torchs_has_fp32_states_of_its_fp32_shards() -> None:
    """Also where the optimizer brings 16-bit ones, of 16-bit parameters, or loads them."""
    model = make().bfloat16()
    basic = sgd(model)
    loss_of(model, batch_of(0)).backward()
    basic.step()
    saved = copy.deepcopy(basic.state_dict())
    assert saved["state"][0]["momentum_buffer"].dtype == torch.bfloat16
    _, optimizer, *_ = initialize(model, basic, config=config(2, **BF16))
    for _ in range(2):
        states = [optimizer.state[p].get("momentum_buffer") for p in model.parameters()]
        assert {s.dtype for s in states if s is not None} == {torch.float32}
        optimizer.load_state_dict(saved)
