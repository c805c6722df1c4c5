"""Micro-steps, batches of them, and gradients that come late or not at all."""

from cases.models import *

Halves = tuple[torch.Tensor, torch.Tensor]


def counted(engine: zerorun.ZeroEngine, halves: Halves, own: bool = False) -> float:
    total = 0.0
    for half in halves:
        loss = loss_of(engine, half)
        loss.backward() if own else engine.backward(loss)
        assert engine.is_gradient_accumulation_boundary() == (half is halves[1])
        engine.step()
        total += loss.item() / 2
    return total


def bounded(engine: zerorun.ZeroEngine, halves: Halves) -> float:
    """The program divides the loss and says when a batch ends, as Hugging Face's Trainer does."""
    total = 0.0
    for last, half in enumerate(halves):
        engine.set_gradient_accumulation_boundary(is_boundary=bool(last))
        loss = loss_of(engine, half) / 2
        engine.backward(loss, scale_wrt_gas=False)
        total += loss.item()
        if last:
            engine.step()
    return total


def added_up(engine: zerorun.ZeroEngine, halves: Halves, own: bool = False) -> float:
    losses = [loss_of(engine, half) / 2 for half in halves]
    for loss in losses:
        loss.backward() if own else engine.backward(loss)
    engine.step()
    return sum(losses).item()


def held_back(engine: zerorun.ZeroEngine, halves: Halves) -> float:
    with engine.no_sync():
        with engine.no_sync():
            pass
        one = loss_of(engine, halves[0]) / 2
        engine.backward(one)
        raises(zerorun.InternalError, "no_sync", engine.step)
    other = loss_of(engine, halves[1]) / 2
    engine.backward(other)
    engine.step()
    return (one + other).item()


TWO = {"gradient_accumulation_steps": 2}
WAYS = (
    (counted, TWO | {"train_micro_batch_size_per_gpu": 2 // WORLD_SIZE}),
    (functools.partial(counted, own=True), TWO),
    (bounded, {}),
    (bounded, TWO),
    (added_up, {}),
    (functools.partial(added_up, own=True), {}),
    (held_back, {}),
)


def case_two_halves_are_the_batch_by_each_way() -> None:
    expected, _ = reference(steps=4)
    for stage in STAGES:
        for way, keys in WAYS:
            _, engine = started(config(stage, **keys))
            losses = [way(engine, part_of(batch_of(step)).chunk(2)) for step in range(4)]
            assert engine.global_steps == 4, way
            assert_close(means(losses, engine), expected)


def case_a_batch_that_is_given_up_leaves_nothing(folder: Path) -> None:
    """By zero_grad after its only micro-step, or by a load after the first of two."""
    for stage, micro_steps in itertools.product(STAGES, (1, 2)):
        norms = []
        for is_given_up in (False, True):
            _, engine = started(config(stage, gradient_accumulation_steps=micro_steps))
            engine.save_checkpoint(folder / str(stage))
            if is_given_up:
                backward(engine, 7)
                if micro_steps == 1:
                    engine.optimizer.zero_grad()
                else:
                    engine.step()
                    engine.load_checkpoint(folder / str(stage))
            train(engine, micro_steps)
            norms.append(engine.get_global_grad_norm())
            assert engine.global_steps == 1
        assert norms[0] == norms[1]


class Interrupted(torch.autograd.Function):
    """The identity, whose backward fails while `fails` says so."""

    fails = False

    @staticmethod
    def forward(_ctx, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx, gradient: torch.Tensor) -> torch.Tensor:
        if Interrupted.fails:
            raise KeyError("in backward")
        return gradient


def case_a_backward_that_fails_half_way_does_not_count() -> None:
    """Its gradients are discarded, or an error where the batch has others beside them."""

    def fail(engine: zerorun.ZeroEngine, step: int) -> None:
        Interrupted.fails = True
        raises(KeyError, "in backward", backward, engine, step)
        Interrupted.fails = False

    expected, _ = reference(sgd, steps=3)
    for stage, micro_steps in itertools.product(STAGES, (1, 2)):
        model = make()
        model.embedding.register_forward_hook(lambda *given: Interrupted.apply(given[-1]))
        settings = config(stage, gradient_accumulation_steps=micro_steps)
        engine, *_ = initialize(model, sgd(model), config=settings)
        losses = []
        for step in range(3):
            fail(engine, 7)  # alone: the next backward replaces it
            with logged() as lines:
                for left in reversed(range(micro_steps)):
                    loss = backward(engine, step)
                    if left or step < 2:
                        engine.step()
            assert ["are discarded" in line for line in lines].count(True) == (RANK == 0)
            losses.append(mean(loss, engine))
        fail(engine, 7)  # beside the last one
        for refused in (engine.step, functools.partial(backward, engine)):
            refuses("restart the accumulation window", refused)
        engine.drop_batch()
        for _ in range(micro_steps):
            backward(engine, 2)
            engine.step()
        fail(engine, 7)
        refuses("restart the accumulation window", engine.step)
        assert engine.global_steps == 3
        assert_close(losses, expected)


def player() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 5))


def case_a_models_zero_grad_forgets_another_engines_loss() -> None:
    def play(settings: dict[str, object] | None) -> list[float]:
        if settings is None:
            generator, judge = make(player, seed=1), make(player, seed=2)
            making, judging = adamw(generator), adamw(judge)
        else:
            generator, making = started(settings, player, seed=1)
            judge, judging = started(settings, player, seed=2)
        losses = []
        for step in range(6):
            noise = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
            noise = part_of(noise) if settings else noise
            judge.zero_grad()
            made = generator(noise)
            error = (judge(made.detach()) - noise).square().mean()
            error.backward()
            judging.step()
            generator.zero_grad()
            fooled = judge(made).square().mean()
            fooled.backward()
            making.step()
            loss = error + fooled
            losses.append(mean(loss, making) if settings else loss.item())
        return losses

    expected = play(None)
    for stage in STAGES:
        assert_close(play(config(stage, gradient_clipping=0.0)), expected)


def case_a_copy_of_a_model_forgets_gradients_of_its_own() -> None:
    model, engine = started(config(STAGES[0]), player)
    engine.backward(model(torch.ones(1, 5)).sum())
    copied = copy.deepcopy(model)
    copied(torch.ones(1, 5)).sum().backward()
    copied.zero_grad()
    assert all(parameter.grad is None for parameter in copied.parameters())
    engine.step()
    assert engine.global_steps == 1  # the engine has kept its gradients
    engine.destroy()
    assert "zero_grad" not in vars(model)


def case_an_unused_pooler_holds_no_gradients_back() -> None:
    class Pooled(Model):
        def __init__(self) -> None:
            super().__init__()
            self.pooler = nn.Linear(32, 32)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            self.pooler(self.embedding(tokens)[:, 0])
            return super().forward(tokens)

    for stage in (3,) if PRIVATE_MEMORY else (2, 3):
        model, engine = started(config(stage), Pooled)
        planned = engine._core.memory_use()["buckets"]
        if PRIVATE_MEMORY:  # gathered parameters are in memory of the rank's own then, here all
            planned += sum(parameter.ds_numel * 4 for parameter in model.parameters())
        peaks: list[int] = []

        def look(_parameter: nn.Parameter) -> None:
            peaks[-1] = max(peaks[-1], engine._core.memory_use()["buckets"])

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(look)
        for step in range(3):
            peaks.append(0)
            train(engine, 1, first=step)
        # At stage 2 buckets wait for the pooler once, in memory of their own. At stage 3 it shares
        # its bucket with the embeddings, which is the last one anyway.
        assert stage == 3 or peaks[0] > 1.03 * planned
        assert max(peaks[1:]) <= 1.03 * planned


def case_hooks_find_the_gradient_of_this_rank() -> None:
    for stage in STAGES:
        model, engine = started(config(stage), lambda: nn.Linear(4, 1, bias=False), optimizer=sgd)
        found: list[torch.Tensor] = []

        def look(parameter: nn.Parameter, found=found) -> None:
            found.append(parameter.grad.clone())
            parameter.grad.mul_(2.0)

        handle = model.weight.register_post_accumulate_grad_hook(look)
        engine.backward(engine(torch.full((2, 4), RANK + 1.0, device=DEVICE)).sum())
        assert torch.equal(found[0].cpu(), torch.full((1, 4), 2.0 * (RANK + 1)))
        handle.remove()
        mean = sum(4.0 * (rank + 1) for rank in range(WORLD_SIZE)) / WORLD_SIZE
        gradient = zerorun.zero.safe_get_full_grad(model.weight)
        assert torch.equal(gradient.cpu(), torch.full((1, 4), mean))
        engine.step()
