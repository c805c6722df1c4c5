"""Engines that end, that follow each other on one model, or that are used out of order."""

from cases.models import *


def start(stage: int, model: nn.Module) -> zerorun.ZeroEngine:
    return initialize(model, adamw(model), config=config(stage))[0]


def case_a_second_initialize_takes_over() -> None:
    expected, _ = reference(steps=3)
    for stage in STAGES:
        model = make()
        first = start(stage, model)
        assert_close(train(first, 3), expected)
        values = first.full_state_dict(rank0_only=False)
        judge, *_ = initialize(model, config=config(stage))
        assert_same(judge.full_state_dict(rank0_only=False), values)
        with torch.no_grad():
            before = mean(own_loss(judge, 3), judge)
        refuses("another initialize", first, batch_of(0))
        refuses("destroyed", first.step)
        first.destroy()  # which has nothing left to do
        again = start(3 - stage if len(STAGES) > 1 else 3, model)
        assert abs(train(again, 1, first=3)[0] - before) < 1e-5


def case_a_dropped_engine_leaves_a_usable_model_or_is_freed_with_it() -> None:
    def dropped(model: nn.Module, share: bool) -> tuple[float, weakref.ref[Any]]:
        keys = {"zerorun": {"comm_timeout": 30, "share_parameters": share}}
        engine = zerorun.initialize(model, adamw(model), config=config(stage, **keys))[0]
        train(engine, 2)
        return loss_of(model, batch_of(5)).item(), weakref.ref(engine._core)

    for stage in STAGES:
        model = make()
        expected, _ = dropped(model, not PRIVATE_MEMORY)
        gc.collect()
        loss = loss_of(model, batch_of(5))
        assert loss.item() == expected
        loss.backward()  # gradients are torch's
        assert all(parameter.grad is not None for parameter in model.parameters())
        model.zero_grad()
        engine = start(stage, model)
        assert abs(loss_of(engine, batch_of(5)).item() - loss.item()) < 1e-5
        train(engine, 1)
        engine.destroy()
        for share in (True, False):
            model = make()
            _, core = dropped(model, share)
            freed = weakref.ref(model)
            del model
            gc.collect()
            assert (freed(), core()) == (None, None)


def case_an_engine_that_inference_mode_has_made_trains_and_leaves_a_model_that_does() -> None:
    for stage in STAGES:
        model = make()
        optimizer = adamw(model)
        with torch.inference_mode():
            engine = initialize(model, optimizer, config=config(stage))[0]
        assert_close(train(engine, 2), reference(steps=2)[0])
        with torch.inference_mode():
            engine.destroy()
        with GatheredParameters(model.parameters()):
            whole_loss(model, 2).backward()


def case_an_initialize_that_fails_late_leaves_the_model_as_it_was() -> None:
    def fails(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        if RANK == WORLD_SIZE - 1:
            raise KeyError("no schedule")
        return torch.optim.lr_scheduler.ConstantLR(optimizer)

    plain = make()
    loss = loss_of(plain, batch_of(0))
    for stage in STAGES:
        for under_init in (False, True):
            with Init(enabled=under_init):
                model = make()
            kind = KeyError if RANK == WORLD_SIZE - 1 else zerorun.Error
            with pytest.raises(kind, match="no schedule"):
                initialize(model, adamw(model), lr_scheduler=fails, config=config(stage))
            hooks = [m._forward_pre_hooks or m._forward_hooks for m in model.modules()]
            hooks += [p._post_accumulate_grad_hooks for p in model.parameters()]
            assert not any(hooks)
            if not under_init or stage < 3:
                assert torch.equal(loss_of(model, batch_of(0)).cpu(), loss)
            engine = start(stage, model)
            assert_close(train(engine, 2), reference(steps=2)[0])


def case_an_interrupted_forward_leaves_the_hooks_in_order() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    expected, _ = reference(steps=4)
    for stage in STAGES:
        model, engine = started(config(stage))
        losses = []
        for step in range(4):
            hook = model.blocks[2].norm.register_forward_pre_hook(interrupt)
            for call in (model, engine, model.blocks[2]) if step < 2 else ():
                given = torch.ones(1, 32) if call is model.blocks[2] else batch_of(step)
                with pytest.raises(KeyboardInterrupt):
                    call(given.to(engine.device))
            hook.remove()
            losses += train(engine, 1, first=step)
            assert stage < 3 or all(p.numel() == 0 for p in model.parameters())
        assert_close(losses, expected)


def case_a_step_without_a_backward_changes_nothing() -> None:
    for stage in STAGES:
        for kind in (adamw, lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-2)):
            model = make()
            optimizer = kind(model)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            engine, *_ = initialize(model, optimizer, lr_scheduler=scheduler, config=config(stage))
            rates = [optimizer.param_groups[0]["lr"]]
            for step in range(2):
                before = engine._core.parameter_hash()
                for _ in range(2):
                    with pytest.warns(UserWarning, match="without a backward"):
                        engine.step()
                assert engine._core.parameter_hash() == before
                assert engine.global_steps == engine.micro_steps == engine._core.step_count == step
                assert engine.skipped_steps == 0
                assert not engine._micro_step_applied
                train(engine, 1, first=step)
                assert engine._core.parameter_hash() != before
                rates.append(optimizer.param_groups[0]["lr"])
            assert rates == [rates[0], rates[0] / 2, rates[0] / 4]


def case_a_rank_without_a_backward_counts_as_zeros() -> None:
    plain = make()
    optimizer = adamw(plain)
    (loss_of(plain, batch_of(0)) / WORLD_SIZE).backward()
    nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    optimizer.step()
    for stage in STAGES:
        model, engine = started(config(stage))
        if RANK == WORLD_SIZE - 1:
            engine.backward(loss_of(engine, batch_of(0)))
        engine.step()
        assert engine.global_steps == 1
        assert_values(model, plain, atol=1e-6)


def case_parameters_that_are_frozen_later_stay_as_they_are() -> None:
    def decaying(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(model.parameters(), lr=1e-2, weight_decay=0.1, momentum=0.9)

    for make_optimizer, stage in itertools.product((adamw, decaying), STAGES):
        plain = make()
        optimizer = make_optimizer(plain)
        model, engine = started(config(stage), optimizer=make_optimizer)
        for step in range(5):
            for each in (plain, model):
                each.blocks[0].requires_grad_(step not in {1, 2})
            torch_step(plain, optimizer, step)
            train(engine, 1, first=step)
        # torch counts a parameter's own steps, and the core the engine's.
        tolerance = 2e-2 if make_optimizer is adamw else 1e-4
        assert_values(model, plain, rtol=tolerance, atol=tolerance)


def case_parameters_that_are_frozen_between_micro_steps_take_their_gradients() -> None:
    """As with torch, which steps what has a gradient."""
    for make_optimizer in (adamw, sgd):
        plain = make()
        optimizer = make_optimizer(plain)
        models = {stage: make() for stage in STAGES}
        engines = [
            initialize(m, make_optimizer(m), config=config(stage, gradient_accumulation_steps=2))[0]
            for stage, m in models.items()
        ]
        for step in range(2):
            for half, rows in enumerate(part_of(batch_of(step)).chunk(2)):
                for model in (plain, *models.values()):
                    model.blocks[0].requires_grad_(half == 0)
                    model.blocks[1].requires_grad_(half == 1)
                for engine in engines:
                    engine.backward(loss_of(engine, rows))
                    engine.step()
                parts = [part.chunk(2)[half] for part in batch_of(step).chunk(WORLD_SIZE)]
                (loss_of(plain, torch.cat(parts)) / 2).backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        for engine, model in zip(engines, models.values(), strict=True):
            assert_values(model, plain, rtol=1e-4, atol=1e-4)
            engine.destroy()


class Projected(Model):
    """Replaces values of a parameter in each forward, as PEFT's CPT does."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        weight = self.blocks[1].norm.weight
        weight.data = weight.detach().clamp(0.995, 1.005)
        return super().forward(tokens)


def case_values_that_forward_replaces_count() -> None:
    losses, _ = reference(kind=Projected)
    for stage in STAGES:
        settings = config(stage, {"stage3_param_persistence_threshold": 100})
        assert_close(train(started(settings, Projected)[1]), losses)
    _, engine = started(config(3), Projected)  # where the parameter is empty after the call
    refuses("parameter blocks.1.norm.weight: its .data was replaced in a call", train, engine)


def case_frozen_values_are_the_same_bits() -> None:
    def kept(target: nn.Parameter) -> list[torch.Tensor]:
        read = safe_get_full_optimizer_state
        states = (read(target, name) for name in ("exp_avg", "exp_avg_sq"))
        return [safe_get_full_fp32_param(target), *states]

    for stage in STAGES:
        model, engine = started(config(stage, **BF16))
        train(engine, 1)
        target = model.blocks[1].up.weight
        target.requires_grad_(False)
        before = kept(target)
        train(engine, 2, first=1)
        assert_same(kept(target), before)
        assert torch.equal(full(target), before[0].bfloat16().cpu())


def case_a_destroyed_engine_says_so(folder: Path) -> None:
    for stage in STAGES:
        _, engine = started(config(stage))
        train(engine, 1)
        engine.destroy()
        loss = torch.ones(1, requires_grad=True)
        for call, *given in (
            (engine, batch_of(0)),
            (engine.step,),
            (engine.zero_grad,),
            (engine.backward, loss),
            (engine.save_checkpoint, folder),
            (engine.load_checkpoint, folder),
        ):
            refuses("destroy", call, *given)
        assert repr(engine)


def case_an_engine_of_another_optimizer_or_none_takes_the_model(folder: Path) -> None:
    tokens = part_of(batch_of(9))
    for stage, precise, make_optimizer in ((3, True, adamw), (1, False, adamw), (2, True, sgd)):
        keys = {} if precise else BF16
        path = folder / f"{stage}"
        _, trained = started(config(stage, **keys), optimizer=make_optimizer)
        train(trained, 2)
        trained.save_checkpoint(path, client_state={"epoch": 4})
        expected = loss_of(trained, tokens).item()
        for other in (None, adamw if make_optimizer is sgd else sgd):
            model = make(seed=1)
            optimizer = other(model) if other else None
            engine, *_ = initialize(model, optimizer, config=config(3, **keys))
            if other:
                raises(zerorun.CheckpointError, "=False", engine.load_checkpoint, path)
            _, state = engine.load_checkpoint(path, load_optimizer_states=False)
            assert state == {"epoch": 4}
            assert engine.global_steps == 2
            assert loss_of(engine, tokens).item() == expected


def case_a_forked_process_cannot_gather() -> None:
    """As a worker of a DataLoader, which would read the training's shared memory."""
    model, engine = started(config(3))
    first, second, _ = model.blocks
    hook = first.register_forward_pre_hook(lambda _, args: refused_in_a_fork(second, *args))
    backward(engine)
    hook.remove()
    refused_in_a_fork(model, batch_of(0))
    refused_in_a_fork(second.up, torch.ones(1, 32))
    engine.step()


def refused_in_a_fork(module: nn.Module, *args: object) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            module(*args)
            os.write(writer, b"no error")
        except zerorun.ConfigError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"called in a process forked from a rank" in os.read(reader, 1 << 12)
