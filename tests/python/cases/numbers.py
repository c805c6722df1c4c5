"""What an engine keeps as it was given: dtypes of buffers and parameters, gradients that were set,
values in 8 bits."""

from zerorun.optimizers.optimizer import compare_rates

from cases.checkpoints import Normalised, engine_at
from cases.models import *

FP16 = {"fp16": {"enabled": True, "loss_scale": 128}}


def plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5)


def case_norm_and_clipping_follow_gradients_that_were_set() -> None:
    model = make()
    optimizer = plain_sgd(model)
    loss_of(model, batch_of(0)).backward()
    for parameter in model.parameters():
        parameter.grad *= 5
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    optimizer.step()
    for stage, local in ((1, False), (2, True), (3, False)):
        sharded, engine = started(config(stage), optimizer=plain_sgd)
        backward(engine)
        for parameter in sharded.parameters():
            if local:
                safe_set_local_grad(parameter, 5 * safe_get_local_grad(parameter))
            else:
                safe_set_full_grad(parameter, 5 * safe_get_full_grad(parameter))
        engine.step()
        assert math.isclose(engine.get_global_grad_norm(), norm, rel_tol=1e-5)
        assert_values(sharded, model, rtol=1e-5, atol=1e-6)


def case_gradients_set_within_a_batch_are_added_up() -> None:
    for stage in (1, 3):
        keys = {"gradient_accumulation_steps": 2, "gradient_clipping": 0.0}
        model, engine = started(config(stage, **keys))
        for value in (1.0, 0.0):  # what the second micro-step finds is 1, and it adds nothing
            backward(engine)
            for parameter in model.parameters():
                gradient = safe_get_full_grad(parameter)
                gradient = torch.ones(gradient.shape) if value else gradient.fill_(2.0)
                safe_set_full_grad(parameter, gradient)
            engine.step()
        numel = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
        assert math.isclose(engine.get_global_grad_norm(), 2 * math.sqrt(numel), rel_tol=1e-6)


def case_a_gradient_that_was_set_to_infinity_skips_the_step() -> None:
    for stage, precision in ((1, {}), (2, FP16), (3, BF16)):
        model, engine = started(config(stage, **precision))
        weight = model.blocks[0].up.weight
        backward(engine)
        before = safe_get_full_fp32_param(weight)
        safe_set_full_grad(weight, torch.full(before.shape, float("inf")))
        with logged() as messages:
            engine.step()
        assert (engine.skipped_steps, engine._last_step.applied) == (1, False)
        assert torch.equal(safe_get_full_fp32_param(weight), before)
        assert engine.get_global_grad_norm() == math.inf
        assert len(messages) == (RANK == 0)
        assert all("not finite, first that of blocks.0.up.weight;" in text for text in messages)
        # A gradient that has overflowed and is put right is no reason to skip.
        backward(engine)
        safe_set_full_grad(weight, torch.full(before.shape, float("nan")))
        safe_set_full_grad(weight, torch.ones(before.shape))
        engine.step()
        assert (engine.skipped_steps, engine._last_step.applied) == (1, True)


def case_a_skipped_step_names_the_rank_whose_loss_was_not_finite() -> None:
    last = WORLD_SIZE - 1
    for stage in STAGES:
        _, engine = started(config(stage))
        train(engine, 1)
        loss = loss_of(engine, part_of(batch_of(1)))
        engine.backward(loss * (math.nan if last == RANK else 1.0))
        with logged() as messages:
            engine.step()
        assert engine.get_global_grad_norm() == math.inf
        assert len(messages) == (RANK == 0)
        assert all(f"; the loss of rank {last} was not finite" in text for text in messages)
        train(engine, 1, first=2)
        assert math.isfinite(engine.get_global_grad_norm())


class Buffered(Model):
    _keep_in_fp32_modules_strict = ("routing*bias",)
    _keep_in_fp32_modules = ("inner",)

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("routing_bias", torch.tensor([5.001, 5.002]))
        self.register_buffer("low", torch.ones(2, dtype=torch.bfloat16))
        self.register_buffer("wide", torch.ones(2, dtype=torch.float64))
        self.inner = nn.Module()
        self.inner.register_buffer("table", torch.ones(2, dtype=torch.bfloat16), persistent=False)


class Positions(nn.Linear):
    def __init__(self) -> None:
        super().__init__(8, 8)
        self.register_buffer("positions", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(super().forward(x) + self.positions)


def case_errors_about_dtypes_name_buffers_that_stay_wide() -> None:
    inputs = torch.ones(2, 8, dtype=torch.bfloat16)
    for keys in ({}, {"data_types": {"buffer_dtype": "bf16"}}):
        model = Positions()
        engine, *_ = initialize(model, adamw(model), config=config(2, **BF16, **keys))
        for trains in (True, False):
            engine.train(trains)
            if keys:
                assert engine(inputs).dtype == torch.bfloat16
            else:
                words = "positions stay fp32 beside bf16 parameters"
                raises(RuntimeError, words, engine, inputs)


def case_buffers_keep_their_dtype() -> None:
    kept = {
        "norm.running_mean": torch.float32,
        "norm.running_var": torch.float32,
        "norm.num_batches_tracked": torch.int64,
        "routing_bias": torch.float32,
        "low": torch.bfloat16,
        "wide": torch.float64,
        "inner.table": torch.bfloat16,
    }
    halves = {"norm.running_mean": torch.bfloat16, "norm.running_var": torch.bfloat16}
    tries = [
        ({}, kept),
        (BF16, kept),
        (FP16, kept | {"inner.table": torch.float32}),
        (BF16 | {"data_types": {"buffer_dtype": "bf16"}}, kept | halves),
        (
            BF16
            | {"data_types": {"buffer_dtype": "bf16", "keep_in_fp32_modules": ["norm", "lo*"]}},
            kept | {"routing_bias": torch.bfloat16, "low": torch.float32},
        ),
    ]
    for keys, expected in tries:
        model = make(Buffered)
        model.routing_bias += 0.001 * (1 + zerorun.communicator.world().rank)
        _ = initialize(model, adamw(model), config=config(3, **keys))
        assert {name: buffer.dtype for name, buffer in model.named_buffers()} == expected
        routing = torch.tensor([5.002, 5.003]).to(model.routing_bias.dtype)  # rank 0's
        torch.testing.assert_close(model.routing_bias.cpu(), routing)


def case_dtypes_that_cannot_be_trained_together_are_refused() -> None:
    told = "have several dtypes", "embedding.weight is torch.float64"
    for dtype, keys, text in ((torch.bfloat16, {}, told[0]), (torch.float64, BF16, told[1])):
        model = make()
        model.head.to(dtype)
        refuses(text, initialize, model, adamw(model), config=config(2, **keys))
    with Init(config=BF16):
        layer = nn.Linear(2, 2, dtype=torch.float64)
    assert layer.weight.dtype == torch.float64  # it is not what 16 bits are for


def case_states_in_8_bits_are_read_and_set_as_values() -> None:
    found = {}
    for kind in ("AdamW", "AdamW8bit"):
        model = make()
        block = {"type": kind, "params": {"lr": 1e-2}}
        engine, *_ = initialize(model, config=config(2, optimizer=block))
        train(engine, 1)
        weight = model.blocks[0].up.weight
        for name in ("exp_avg", "exp_avg_sq"):
            found[kind, name] = safe_get_full_optimizer_state(weight, name)
        if kind == "AdamW8bit":
            states = engine.optimizer.state[weight]
            assert states.get("exp_avg", found[kind, "exp_avg"]).dtype == torch.float32
            for name, value in (("exp_avg", -0.75), ("exp_avg_sq", 0.75)):
                wanted = torch.full(weight.shape, value)
                wanted[0, 0] = 2 * value
                safe_set_full_optimizer_state(weight, wanted, name)
                assert torch.equal(safe_get_full_optimizer_state(weight, name).cpu(), wanted)
                again = found[kind, name]
                safe_set_full_optimizer_state(weight, again, name)
                assert torch.equal(safe_get_full_optimizer_state(weight, name), again)
    for name in ("exp_avg", "exp_avg_sq"):
        exact, coded = found["AdamW", name], found["AdamW8bit", name]
        largest = exact.abs().max().item()
        torch.testing.assert_close(coded, exact, rtol=1 / 16, atol=largest / 100)


def case_a_loss_without_its_scale_is_an_error() -> None:
    for stage in (0, 3):
        _, engine = started(config(stage, **FP16))
        loss_of(engine, part_of(batch_of(0))).backward()
        refuses("Loss scaling is required", engine.step)
        engine.zero_grad()
        engine.scale(loss_of(engine, part_of(batch_of(0)))).backward()
        engine.step()
        assert engine.global_steps == 1
        for first in (True, False):  # one that is scaled hides no other
            losses = [loss_of(engine, part_of(batch_of(0))) for _ in range(2)]
            if first:
                engine.backward(losses[0])
            losses[1].backward()
            call = engine.step if first else lambda: engine.backward(losses[0])
            refuses("Loss scaling is required", call)
            engine.drop_batch()


def case_a_scaled_loss_may_wait_for_its_backward() -> None:
    for stage in (0, 3):
        model = make()
        engine, optimizer, *_ = initialize(model, adamw(model), config=config(stage, **FP16))
        scaled = engine.scale(loss_of(engine, part_of(batch_of(0))))
        optimizer.zero_grad()
        scaled.backward()
        optimizer.step()
        first, second = (loss_of(engine, part_of(batch_of(step))) for step in (1, 2))
        scaled = engine.scale(second)
        engine.backward(first)
        scaled.backward()
        engine.step()
        assert engine.global_steps == 2


class Expanded(Normalised):
    """With buffers whose elements are not each a number in memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.rand(3).expand(2, 3))
        self.register_buffer("conjugate", torch.rand(3, dtype=torch.complex64).conj())


def case_buffers_that_are_views_are_shared_saved_and_loaded(folder: Path) -> None:
    engines = [engine_at(2, kind=Expanded, seed=RANK)]
    rows = engines[0].module.rows.clone()
    conjugate = engines[0].module.conjugate.resolve_conj()
    engines[0].communicator.broadcast(conjugate.view(torch.float32))
    assert torch.equal(rows[0], rows[1])
    engines[0].save_checkpoint(folder)
    engines.append(engine_at(3, kind=Expanded, seed=7))
    assert not torch.equal(engines[1].module.rows, rows)
    engines[1].load_checkpoint(folder)
    assert torch.equal(engines[1].module.rows, rows)
    assert torch.equal(engines[1].module.conjugate, conjugate)


def case_the_programs_default_dtype_and_device_are_not_the_engines(folder: Path) -> None:
    found = set()
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        models, tokens = [make(), make()], part_of(batch_of(0))
        given = sgd(models[0]), adamw(models[1])
        torch.set_default_dtype(dtype)
        torch.set_default_device("cpu" if dtype == torch.float32 else "meta")
        try:
            for model, optimizer in zip(models, given, strict=True):
                engine = shard(model, optimizer=optimizer, stage=2)
                loss_of(model, tokens).backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1).item()
                optimizer.step()
                compare_rates(optimizer.param_groups, engine.communicator)
                engine.save_checkpoint(folder)
                engine.load_checkpoint(folder)
                next(engine.stream_parameters(changed_since=0))
                engine.measure_peak()
                found.add((norm, engine._core.parameter_hash()))
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)
    assert len(found) == 2
