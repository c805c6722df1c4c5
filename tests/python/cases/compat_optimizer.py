"""What programs read of DeepSpeed's ZeRO optimizers: flat masters, states, groups, norm; and the
`.grad` of parameters at stage 0, which they log, clip, replace and clear."""

import json

from deepspeed import utils
from zerorun.agreement import texts_of_all

from cases.compat import *


def flat_of(optimizer: torch.optim.Optimizer, stage: int) -> list[torch.Tensor]:
    if stage == 3:
        return optimizer.fp32_partitioned_groups_flat
    return optimizer.single_partition_of_fp32_groups


def case_masters_of_a_group_are_one_flat_tensor() -> None:
    total = sum(p.numel() for p in make().parameters())
    for stage, bf16 in itertools.product((1, 2, 3), (False, True)):
        engine, optimizer, *_ = start(stage, bf16={"enabled": bf16})
        (flat,) = flat_of(optimizer, stage)
        before = flat.clone()
        parameters = list(engine.module.parameters())
        assert_same(flat, torch.cat([utils.safe_get_local_fp32_param(p) for p in parameters]))
        assert mean(torch.tensor(float(flat.numel())), engine) * WORLD_SIZE == total
        assert optimizer.optimizer.state[flat] == {}
        train(engine, 2)
        (again,) = flat_of(optimizer, stage)
        assert again is flat  # programs compare, and look states up with it
        assert flat.numel() == 0 or not torch.equal(before, flat)
        states = optimizer.optimizer.state[flat]
        for name in ("exp_avg", "exp_avg_sq"):
            parts = [utils.safe_get_local_optimizer_state(p, name) for p in parameters]
            assert torch.equal(states[name], torch.cat(parts))
        assert states["step"] == engine.global_steps == 2
        assert all(optimizer.state[p]["step"] == 2 for p in parameters)
    value = flat.sum()
    for change in (
        flat.zero_,
        lambda: flat.data.mul_(2.0),
        lambda: flat[:2].fill_(1.0),
        lambda: flat.view(-1).copy_(torch.zeros_like(flat)),
        lambda: flat.__setitem__(0, 1.0),
        lambda: setattr(flat, "data", torch.zeros_like(flat)),
    ):
        raises(NotImplementedError, "safe_set_full_fp32_param", change)
    assert torch.equal(flat.sum(), value)
    assert (flat * 2).add_(1.0).shape == flat.shape  # what is computed from it is free
    assert [list(map(id, group)) for group in optimizer.fp16_groups] == [list(map(id, parameters))]
    assert optimizer._global_grad_norm == engine.get_global_grad_norm() > 0
    raises(AttributeError, "zerorun's optimizer", lambda: optimizer.reduce_bucket)
    assert not hasattr(optimizer, "train")  # of schedule-free optimizers


def case_states_can_be_gathered() -> None:
    def gathered(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        """As a program does: of every tensor of the state dict, from all ranks."""
        found = {}
        for index, states in optimizer.state_dict()["state"].items():
            for name, value in states.items():
                if isinstance(value, torch.Tensor) and value.numel() > 1:
                    rows = [torch.empty_like(value) for _ in range(WORLD_SIZE)]
                    torch.distributed.all_gather(rows, value)
                    found[f"{index}.{name}"] = torch.cat(rows)
        return found

    with_process_group()
    kinds = {adamw: ("exp_avg", "exp_avg_sq"), sgd: ()}
    for stage, (kind, names) in itertools.product((1, 3), kinds.items()):
        engine, other = (
            begin(model=model, config=config(stage, **BF16), optimizer=kind(model))[0]
            for model in (make(), make())
        )
        train(engine, 2)
        inner = engine.optimizer.optimizer
        states = gathered(inner)
        for name in names:
            whole = (
                utils.safe_get_full_optimizer_state(parameter, name).flatten()
                for parameter in engine.module.parameters()
            )
            values = torch.cat([*whole])
            found = states[f"0.{name}"]
            assert_same(found[found != 0].sort()[0], values[values != 0].sort()[0])
        other.optimizer.optimizer.load_state_dict(copy.deepcopy(inner.state_dict()))
        assert_same(train(other, 2, first=2), train(engine, 2, first=2))


def case_states_are_as_long_on_a_rank_that_has_no_elements() -> None:
    for stage in STAGES:
        model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False))
        groups = [{"params": [p], "momentum": 0.9 * i} for i, p in enumerate(model.parameters())]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        engine = begin(model=model, config=config(stage), optimizer=optimizer)[0]
        engine.backward(engine(torch.ones(1, 2, device=DEVICE)).sum())
        engine.step()
        states = engine.optimizer.state_dict()["state"]
        own = [[name, *value.shape] for index in states for name, value in states[index].items()]
        assert len(set(texts_of_all(json.dumps(own), engine.communicator))) == 1, own
        assert [name for name, _ in own] == ["momentum_buffer"], own


def case_a_schedule_without_its_optimizer_is_deepspeeds_error() -> None:
    model = make()
    schedule = torch.optim.lr_scheduler.ConstantLR(adamw(model))
    given = {"lr_scheduler": schedule, "config": config(1, optimizer={"type": "AdamW"})}
    raises(AssertionError, "give that optimizer too", begin, model=model, **given)


def case_skip_init_under_zero_init() -> None:
    with deepspeed.zero.Init():
        linear = nn.utils.skip_init(nn.Linear, 6, 6)
        linear.weight.data  # noqa: B018 - empty, and no error
    assert (linear.weight.numel(), linear.weight.ds_shape) == (0, (6, 6))
    assert linear.weight.ds_tensor.numel() == -(-36 // WORLD_SIZE)
    with deepspeed.zero.GatheredParameters(linear.weight):
        assert linear.weight.shape == (6, 6)
    plain = nn.utils.skip_init(nn.Linear, 2, 2)
    assert plain.weight.numel() == 4


def case_a_configuration_names_optimizers_and_schedules_of_torchs() -> None:
    kind = torch.optim.RMSprop
    expected, _ = reference(lambda m: kind(m.parameters(), lr=1e-3, momentum=0.5), steps=3)
    section = {"type": "RMSprop", "params": {"lr": 1e-3, "momentum": 0.5, "alpha": "auto"}}
    schedule = {"type": "StepLR", "params": {"step_size": 3, "gamma": 0.5}}
    for stage in range(4):
        engine, optimizer, _, scheduler = begin(
            model=(model := make()),
            model_parameters=model.parameters(),
            config=config(stage, optimizer=section, scheduler=schedule),
        )
        assert isinstance(optimizer.optimizer, kind)
        assert isinstance(scheduler, torch.optim.lr_scheduler.StepLR)
        assert engine.client_optimizer is engine.client_lr_scheduler is None
        assert_close(train(engine, 3), expected)
        assert engine.get_lr() == [5e-4]
    wrong = config(1, optimizer={"type": "Optimizer"})
    refuses("/optimizer/type", begin, model=make(), config=wrong)


Change = Callable[[nn.Module], object]


def trained(change: Change, way: str) -> tuple[nn.Module, list[float]]:
    """By torch alone; by an engine's backward, or the loss's own."""
    model, norms = make(), []
    runner = adamw(model) if way == "torch" else start(0, model, gradient_clipping=0.0)[0]
    for step in range(3):
        loss = whole_loss(model, step) if way == "torch" else own_loss(runner, step)
        runner.backward(loss) if way == "engine" else loss.backward()
        change(model)
        norms.append(norm_of(model))
        runner.step()
        assert way == "torch" or all(p.grad is None for p in model.parameters())
        runner.zero_grad()
    return model, norms


def clip(model: nn.Module) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def replace(model: nn.Module) -> None:
    parameter = next(model.parameters())
    parameter.grad = torch.full_like(parameter, 0.01)


def leave_out(model: nn.Module) -> None:
    next(model.parameters()).grad = None


def case_what_a_program_changes_in_grad_counts_in_the_step() -> None:
    for way in ("engine", "own"):
        for change in (lambda _: None, clip, replace, leave_out):
            model, norms = trained(change, way)
            expected, expected_norms = trained(change, "torch")
            assert norms == pytest.approx(expected_norms, rel=1e-4)
            # Adam makes much of a rounding where a gradient is nearly zero.
            for found, wanted in zip(model.parameters(), expected.parameters(), strict=True):
                assert (found - wanted).abs().mean() < 1e-5
            if change is leave_out:
                assert torch.equal(next(model.parameters()), next(make().parameters()))


def case_grad_is_there_from_the_end_of_a_batch_to_the_step() -> None:
    engine, *_ = start(0, gradient_accumulation_steps=2)
    parameter = next(engine.module.parameters())
    for micro_step in range(4):
        backward(engine)
        assert (parameter.grad is not None) == (micro_step % 2 == 1)
        engine.step()
    backward(engine)
    engine.drop_batch()
    assert parameter.grad is None
    engine.destroy()
    assert "grad" not in vars(nn.Parameter)  # it is PyTorch's own again


def case_grad_and_the_functions_for_states_agree() -> None:
    engine, *_ = start(0)
    parameter = next(engine.module.parameters())
    backward(engine)
    if RANK == 0:  # alone, to log it
        assert parameter.grad is not None
    torch.testing.assert_close(parameter.grad, utils.safe_get_full_grad(parameter))
    utils.safe_set_full_grad(parameter, torch.ones_like(parameter))
    assert torch.equal(parameter.grad, torch.ones_like(parameter))
    parameter.grad.mul_(2)
    assert torch.equal(utils.safe_get_full_grad(parameter), torch.full_like(parameter, 2))
    loss = own_loss(engine, 0)
    parameter.grad = torch.zeros_like(parameter)
    refuses("was changed between two backward passes", engine.backward, loss)
    engine, *_ = start(0, fp16={"enabled": True, "initial_scale_power": 4})
    parameter = next(engine.module.parameters())
    engine.scale(own_loss(engine, 0), retain_graph=True).backward()
    assert parameter.grad.dtype == torch.float16
    unscaled = parameter.grad.float() / engine.loss_scale()
    torch.testing.assert_close(unscaled, utils.safe_get_full_grad(parameter), rtol=2e-3, atol=1e-6)
    engine.step()


def case_a_gradient_without_a_backward_is_the_steps() -> None:
    sgd = {"type": "SGD", "params": {"lr": 0.5}}
    for keys in ({}, {"fp16": {"enabled": True, "initial_scale_power": 2}}):
        engine, *_ = start(0, optimizer=sgd, gradient_clipping=0.0, **keys)
        scale = engine.loss_scale()
        for _ in range(2):
            before = [p.detach().clone() for p in engine.module.parameters()]
            first, *others = engine.module.parameters()
            first.grad = torch.full_like(first, scale * (2 * RANK + 1))
            engine.step()
            mean = sum(2 * rank + 1 for rank in range(WORLD_SIZE)) / WORLD_SIZE
            torch.testing.assert_close(first.data, before[0] - 0.5 * mean)
            assert all(map(torch.equal, others, before[1:]))
            assert first.grad is None
        backward(engine)
        engine.step()
    engine, *_ = start(2)
    last = list(engine.module.parameters())[-1]
    last.grad = torch.ones_like(last)
    for _ in range(2):
        refuses("has a .grad that was assigned to it", engine.step)
    last.grad = None
    assert engine.global_steps == 0


def made(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)


def case_stage_0_returns_the_optimizer_that_was_given() -> None:
    """Before that of the configuration."""
    expected, _ = reference(steps=3)
    settings = {"type": "SGD", "params": {"lr": 1.0}}
    for stage, make_optimizer in itertools.product((0, 1), (adamw, lambda _: made)):
        model = make()
        given = {"optimizer": make_optimizer(model), "config": config(stage, optimizer=settings)}
        engine, optimizer, *_ = begin(model=model, **given)
        assert engine.config["optimizer"] == settings
        assert (type(optimizer) is torch.optim.AdamW) == (stage == 0)
        losses = []
        for step in range(3):
            loss = backward(engine, step)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(mean(loss, engine))
        assert_close(losses, expected)
        assert engine.global_steps == 3
        assert optimizer.state[engine.module.head.weight]["step"] == 3


def case_torchs_clipping_changes_nothing_from_stage_1_on() -> None:
    for stage in (1, 2, 3):
        engine, *_ = start(stage, gradient_clipping=0.0)
        backward(engine)
        weight = engine.module.head.weight
        before = utils.safe_get_full_grad(weight)
        with pytest.warns(UserWarning, match="gradient_clipping in its configuration"):
            assert torch.nn.utils.clip_grad_norm_(engine.parameters(), 1e-3).item() == 0.0
        for name, more in (("clip_grad_value_", ()), ("clip_grads_with_norm_", [torch.ones(())])):
            if hasattr(torch.nn.utils, name):  # the second from 2.6 on
                with pytest.warns(UserWarning, match=f"{name} changes nothing"):
                    getattr(torch.nn.utils, name)(engine.parameters(), 1e-3, *more)
        assert torch.equal(utils.safe_get_full_grad(weight), before)


def case_programs_skip_the_step_of_one_model_where_another_overflows() -> None:
    for stage in range(4):
        engine, optimizer, *_ = start(stage)
        weight = engine.module.blocks[0].up.weight
        before = utils.safe_get_full_fp32_param(weight)
        engine.backward(own_loss(engine, 0))
        assert not optimizer.check_overflow(external=True)
        optimizer.skip_step = True
        assert optimizer.check_overflow()
        engine.step()
        assert (optimizer.check_overflow(), engine.skipped_steps) == (True, 1)
        engine.backward(own_loss(engine, 1) * (float("inf") if RANK == 0 else 1.0))
        assert optimizer.check_overflow()  # on every rank
        engine.step()
        assert torch.equal(utils.safe_get_full_fp32_param(weight), before)
        train(engine, 1)
        assert (optimizer.check_overflow(), engine.skipped_steps) == (False, 2)
