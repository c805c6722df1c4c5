"""torch's functions that clip, where the gradients are an engine's."""

from collections.abc import Iterable

from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from zerorun import torch_seam as seam
from zerorun.shards import clipping

from cases.models import *

IN_TWO_FUNCTIONS = hasattr(torch.nn.utils, "get_total_norm")  # from torch 2.6 on


def blocks_of(model: nn.Module) -> Iterable[nn.Parameter]:
    return model.blocks.parameters()


def gradients_of(model: nn.Module) -> list[torch.Tensor]:
    return [safe_get_full_grad(p) for p in model.parameters()]


def trained(model: Any, optimizer: Any, calls: Any, engine: Any = None, steps=4) -> list[float]:
    """Losses and norms; the model's own loop, which clips by each of `calls`."""
    found = []
    for step in range(steps):
        optimizer.zero_grad()
        rows = batch_of(step) if engine is None else part_of(batch_of(step))
        loss = loss_of(model, rows)
        loss.backward()
        for parameters, limit, order in calls:
            norm = torch.nn.utils.clip_grad_norm_(parameters(model), limit, order)
            found.append(norm.item())
        optimizer.step()
        found.append(loss.item() if engine is None else mean(loss.detach(), engine))
    return found


def case_it_clips_as_without_an_engine() -> None:
    every = nn.Module.parameters
    for calls in (
        [(every, 0.3, 2.0)],
        [(every, 0.02, float("inf"))],
        [(every, 3.0, 1.0)],
        [(every, float("inf"), 2.0)],  # to know the norm
        [(blocks_of, 0.05, 2.0), (every, 0.2, 2.0)],
    ):
        plain = make()
        expected = trained(plain, sgd(plain), calls)
        for stage in STAGES:
            # On shards, and on the core's own pass, whose first gradient is that of sgd.
            for make_optimizer, steps, count in ((sgd, 4, len(expected)), (adamw, 1, len(calls))):
                model = make()
                optimizer = make_optimizer(model)
                engine = shard(model, stage=stage, optimizer=optimizer)
                found = trained(model, optimizer, calls, engine, steps)
                assert_close(found[:count], expected[:count])


def case_a_second_backward_is_clipped_too() -> None:
    for late in (range(WORLD_SIZE), [WORLD_SIZE - 1]):
        plain = make()
        loss_of(plain, batch_of(0)).backward()
        for rank in late:
            rows = batch_of(1).chunk(WORLD_SIZE)[rank]
            (loss_of(plain, rows) / WORLD_SIZE).backward()
        whole = [p.grad.clone() for p in plain.parameters()]
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.05).item()
        clipped = [p.grad.clone() for p in plain.parameters()]
        torch.nn.utils.clip_grad_value_(plain.parameters(), 1e-4)
        for stage in STAGES:
            model = make()
            optimizer = sgd(model)
            engine = shard(model, stage=stage, optimizer=optimizer)
            own_loss(model, 0).backward()
            if RANK in late:
                own_loss(model, 1).backward()
            torch.testing.assert_close(gradients_of(model), whole)
            own = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05).item()
            assert own == pytest.approx(norm, rel=1e-5)
            torch.testing.assert_close(gradients_of(model), clipped)
            torch.nn.utils.clip_grad_value_(model.parameters(), 1e-4)
            optimizer.step()
            left = torch.cat([p.grad.double().flatten() for p in plain.parameters()]).norm()
            assert engine.get_global_grad_norm() == pytest.approx(left.item(), rel=1e-5)


def case_a_second_backward_is_read_where_it_is_stored() -> None:
    """With a part of the states offloaded, and of small buckets none of a rank's."""
    plain = make()
    for step in range(2):
        whole_loss(plain, step).backward()
    whole = [p.grad for p in plain.parameters()]
    zero = {"overlap_comm": True, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}
    for stage in set(STAGES) - {0}:
        model, _ = started(config(stage, zero), optimizer=sgd)
        for step in range(2):
            own_loss(model, step).backward()
        torch.testing.assert_close(gradients_of(model), whole)


def case_other_dtypes_and_places_are_clipped_too() -> None:
    plain = make()
    loss_of(plain, batch_of(0)).backward()
    expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.01).item()
    for keys, offload in (
        ({"fp16": {"enabled": True, "initial_scale_power": 8}}, {}),
        ({"bf16": {"enabled": True}}, {}),
        ({}, {"offload_optimizer": {"device": "cpu"}}),
    ):
        same = set()  # bits, at every stage
        for stage in STAGES:
            zero = offload if stage > 0 else {}
            model, engine = started(config(stage, zero, **keys, gradient_clipping=0.0))
            backward(engine)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            same.add(norm.item())
            assert norm.item() == pytest.approx(expected, rel=2e-2)
            engine.step()
            # The step takes the norm again, of what was clipped.
            assert engine.get_global_grad_norm() == pytest.approx(0.01, rel=2e-2)
        assert len(same) == 1


def case_values_are_clipped_as_without_an_engine() -> None:
    plain = make()
    loss_of(plain, batch_of(0)).backward()
    torch.nn.utils.clip_grad_value_(plain.parameters(), 0.01)
    torch.nn.utils.clip_grad_value_(plain.head.weight, 0.002)
    assert (plain.head.weight.grad.abs() == 0.002).any()
    for keys in ({}, {"fp16": {"enabled": True, "initial_scale_power": 8}}):
        rounding = 2e-3 if keys else 1e-6
        for stage in STAGES:
            model, engine = started(config(stage, **keys, gradient_clipping=0.0))
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)  # there is no gradient
            backward(engine)
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
            torch.nn.utils.clip_grad_value_(model.head.weight, 0.002)
            expected = [p.grad for p in plain.parameters()]
            torch.testing.assert_close(gradients_of(model), expected, atol=rounding, rtol=1e-3)
            engine.step()
            assert engine.skipped_steps == 0


def case_what_is_not_finite_is_left_to_the_step() -> None:
    shape = make().head.weight.shape
    norms, values = torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_
    for stage in STAGES:
        model, engine = started(config(stage, gradient_clipping=0.0), optimizer=sgd)
        for value, clip in ((torch.inf, norms), (torch.inf, values), (torch.nan, values)):
            backward(engine)
            safe_set_full_grad(model.head.weight, torch.full(shape, value))
            if clip is norms:
                given = {"max_norm": 1.0, "error_if_nonfinite": True}
                raises(RuntimeError, "error_if_nonfinite", clip, model.parameters(), **given)
            norm = clip(model.parameters(), 1.0)
            assert norm is None or norm.item() == torch.inf
            engine.step()
        assert engine.skipped_steps == 3


def scaled(model: Any, optimizer: Any, engine: Any = None, kind: Any = None) -> list[float]:
    """Losses, norms and scales of a loop with torch's own scaler. It skips the second step, where
    elements of one rank's part are not finite."""
    scaler = (kind or torch.amp.GradScaler)(DEVICE.type, init_scale=2.0**10, growth_interval=3)
    found = []
    for step in range(6):
        optimizer.zero_grad()
        loss = loss_of(model, batch_of(step) if engine is None else part_of(batch_of(step)))
        added = torch.inf if step == 1 else 0.0
        hook = model.blocks[2].up.bias.register_hook(functools.partial(torch.add, added))
        scaler.scale(loss).backward()
        hook.remove()
        if step % 2 == 0:
            scaler.unscale_(optimizer)
            found.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3).item())
        scaler.step(optimizer)
        scaler.update()
        found.append(loss.item() if engine is None else mean(loss.detach(), engine))
        found.append(scaler.get_scale())
    return found


def case_torchs_scalers_unscale_an_engines_gradients() -> None:
    with_process_group()  # that of FSDP asks all ranks itself
    fused = functools.partial(adamw, fused=True)  # whose own steps unscale
    kinds = ((sgd, None), (sgd, ShardedGradScaler), (adamw, None), (fused, None))
    for make_optimizer, kind in kinds:
        plain = make()
        expected = scaled(plain, make_optimizer(plain))
        for stage in STAGES:
            model = make()
            optimizer = make_optimizer(model)
            engine = shard(model, stage=stage, optimizer=optimizer)
            assert_close(scaled(model, optimizer, engine, kind), expected)
            if make_optimizer is sgd:
                assert_values(model, plain)
            engine.destroy()
            assert getattr(optimizer, seam.TAKES_SCALE, False) is (make_optimizer is fused)


def case_scalers_of_engines_that_scale_or_count_are_errors() -> None:
    scaler = torch.amp.GradScaler(DEVICE.type)
    given = {"accumulation_steps": 2}, {"dtype": torch.float16}
    for options, text in zip(given, ("counts 2 micro-steps", "(loss) alone"), strict=True):
        model = make()
        optimizer = sgd(model)
        shard(model, optimizer=optimizer, **options)
        scaler.scale(loss_of(model, part_of(batch_of(0))).float()).backward()
        refuses(text, scaler.step, optimizer)


def case_norms_of_torchs_function_clip_no_engines_gradients() -> None:
    """A norm of clip_grad_norm_ would be right, but nothing would clip by it."""
    if not IN_TWO_FUNCTIONS:
        return
    utils = torch.nn.utils
    assert utils.get_total_norm(tensors=[torch.ones(4)], norm_type=2.0, foreach=False).item() == 2.0
    model, engine = started(config(3), optimizer=sgd)
    backward(engine)
    whole = utils.clip_grad_norm_(model.parameters(), float("inf"))
    assert whole > 0
    there = utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    for norm in (there, whole):
        refuses("clip_grad_norm_", utils.clip_grads_with_norm_, model.parameters(), 1.0, norm)
    engine.destroy()
    other = nn.Parameter(torch.ones(4))
    other.grad = torch.ones(4)
    utils.clip_grads_with_norm_(other, 1.0, total_norm=torch.tensor(2.0))
    torch.testing.assert_close(other.grad, torch.full((4,), 0.5))


def case_names_from_before_the_first_engine() -> None:
    """Those of modules are new functions; who uses another reference to torch's is told."""
    clipping.serve()
    clip_grad, importer = torch.nn.utils.clip_grad, types.ModuleType("importer")
    torchs = inspect.unwrap(clip_grad.clip_grad_norm_)
    importer.clip = torch.nn.utils.clip_grad_norm_
    sys.modules["importer"] = importer
    clipping.serve.__wrapped__()
    assert importer.clip is torch.nn.utils.clip_grad_norm_ is clip_grad.clip_grad_norm_
    model, engine = started(config(3), optimizer=sgd)
    backward(engine)
    assert importer.clip(model.parameters(), 0.01, foreach=False).item() > 0.01
    assert importer.clip(model.parameters(), 1.0).item() == pytest.approx(0.01, rel=1e-3)
    if IN_TWO_FUNCTIONS:
        refuses("since before the engine was made", torchs, model.parameters(), 1.0)


def case_what_is_no_engines_is_torchs() -> None:
    other = nn.Parameter(torch.ones(4))
    other.grad = torch.ones(4)
    clip = torch.nn.utils.clip_grad_norm_
    assert clip(other, 1.0).item() == 2.0
    torch.testing.assert_close(other.grad, torch.full((4,), 0.5))
    torch.nn.utils.clip_grad_value_(other, 0.25, foreach=False)
    torch.testing.assert_close(other.grad, torch.full((4,), 0.25))
    other.grad = torch.ones(4)
    model, engine = started(config(3))
    assert clip(model.parameters(), 1.0).item() == 0.0  # there is no gradient
    backward(engine)
    refuses("once for each", clip, [other, *model.parameters()], 1.0)
    torch.nn.utils.clip_grad_value_([other, *model.parameters()], 1e-3)  # each where it is
    torch.testing.assert_close(other.grad, torch.full((4,), 1e-3))
    assert safe_get_full_grad(model.head.weight).abs().max().item() <= 1.001e-3
