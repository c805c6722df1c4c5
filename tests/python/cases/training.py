"""Training loops under zerorun.initialize against torch alone."""

from cases.models import *


def trained(stage: int, kind: type[nn.Module] = Model, **keys: object):
    _, engine = started(config(stage, **keys), kind, seed=RANK)
    return train(engine), engine._core.parameter_hash()


def check_kind(kind: type[nn.Module], same_bits: bool = True) -> None:
    expected, _ = reference(kind=kind)
    runs = [trained(stage, kind) for stage in STAGES]
    for losses, _ in runs:
        assert_close(losses, expected)
    assert not same_bits or all(run == runs[0] for run in runs)


def case_the_first_backward_of_a_process_may_recompute() -> None:
    """PyTorch counts them from 0."""
    assert_close(trained(3, NonReentrant)[0], reference(kind=NonReentrant)[0])


class Negated(Scaled):
    """The same; the gradient of one element is a view that PyTorch negates when it reads it."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scale = torch.complex(torch.zeros_like(self.scale), self.scale).conj()
        return Model.forward(self, tokens) * (scale.real - scale.imag)


def case_all_stages_equal_torch_and_each_other() -> None:
    check_kind(Model)
    assert_close(trained(3, Negated)[0], reference(kind=Scaled)[0])
    check_kind(Inside)  # which reads a parameter of a module that it calls


class NonReentrant(Model):
    """Recomputes blocks, one of them twice."""

    reentrant = False

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for index in (1, 0, 1):
            x = checkpoint(self.blocks[index], x, use_reentrant=self.reentrant)
        return self.head(x)


class Reentrant(NonReentrant):
    reentrant = True


def case_reentrant_checkpointing_of_a_shared_block() -> None:
    # In the first step the second use comes after its bucket was sent: one more sum, whose order
    # depends on what lies in that bucket.
    check_kind(Reentrant, same_bits=False)


class Frozen(Model):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[0].requires_grad_(False)
        self.blocks[1].up.weight.requires_grad_(False)


def case_frozen_parameters_have_no_gradient_or_optimizer_bytes() -> None:
    check_kind(Frozen)
    for stage in STAGES:
        model, engine = started(config(stage), Frozen)
        held = engine._core.state_intervals(engine._core.parameter_id("blocks.0.up.bias"))
        assert all(i.master is None and i.grad is None and not i.states for i in held)
        assert safe_get_full_fp32_param(model.blocks[0].up.bias) is None


def case_fp16_inputs_are_cast_when_the_configuration_asks() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.seen: list[torch.dtype] = []

        def forward(self, value: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            self.seen = [value.dtype, ids.dtype]
            return self.layer(value)

    ids = torch.ones(1, dtype=torch.int64, device=DEVICE)
    # Templates for fp16 leave auto_cast in where they are used for fp32.
    for enabled, dtype in ((True, torch.float16), (False, torch.float32)):
        model = Half()
        keys = config(2, fp16={"enabled": enabled, "auto_cast": True})
        engine, *_ = initialize(model, config=keys)
        assert engine(torch.ones(1, 4, device=DEVICE), ids=ids).dtype == dtype
        assert model.seen == [dtype, torch.int64]


def case_train_evaluate_generate_train() -> None:
    for stage in STAGES:
        model, engine = started(config(stage))
        losses = train(engine, 3)
        engine.eval()
        with torch.no_grad():
            first = loss_of(engine, part_of(batch_of(77)))
            tokens = batch_of(5)[:1, :2].to(DEVICE)
            for _ in range(4 + RANK):  # ranks may generate different lengths
                tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
            again = loss_of(model, part_of(batch_of(77)))
        assert torch.equal(first, again)
        engine.train()
        losses += train(engine, 3, first=3)
        expected, _ = reference(steps=6)
        assert_close(losses, expected)


def case_forward_runs_under_autocast_when_the_configuration_asks() -> None:
    tokens = part_of(batch_of(0)).to(DEVICE)
    model = make().to(DEVICE)
    plain = model(tokens)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        expected = model(tokens)
    assert not torch.equal(plain, expected.float())
    for stage in STAGES:
        model, engine = started(config(stage, **AUTOCAST))
        assert engine._core.param_dtype == "fp32"
        assert engine.module.embedding.weight.dtype == torch.float32
        assert torch.equal(engine(tokens), expected)
        assert torch.equal(engine.module(tokens), plain)
        losses = train(engine, 4)
        assert losses[-1] < losses[0]
    off = {"torch_autocast": {"enabled": False, "dtype": "float16"}}
    assert torch.equal(initialize(make(), config=config(0, **off))[0](tokens), plain)
    for params in ("bf16", "fp16"):
        asked = {"torch_autocast": {"enabled": True, "dtype": "half"}, params: {"enabled": True}}
        engine, *_ = initialize(make(), config=config(1, **asked))
        assert engine.autocast is torch.float16
        assert engine._core.loss_scale == 2.0**16


def case_autocast_to_float16_scales_the_loss_as_pytorchs_scaler_does(folder: Path) -> None:
    class Wide(nn.Module):
        """Its logits are fp32, so that the scaled loss is: 2^16 is more than fp16 has."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = make()

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.inner(tokens).float()

    model = Wide().to(DEVICE)
    optimizer, scaler = adamw(model), torch.amp.GradScaler(DEVICE.type)
    expected, factors = [], (1.0, 1e30, 1.0, 1.0)  # the second overflows
    for step, factor in enumerate(factors):
        optimizer.zero_grad()
        with torch.autocast(DEVICE.type, torch.float16):
            loss = loss_of(model, batch_of(step).to(DEVICE))
        scaler.scale(loss * factor).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        expected.append(loss.item())
    assert scaler.get_scale() == 2.0**15
    half = {"torch_autocast": {"enabled": True, "dtype": "float16"}}
    for stage in STAGES:
        _, engine = started(config(stage, **half), Wide)
        assert engine._core.loss_scale == 2.0**16
        losses = []
        for step, factor in enumerate(factors):
            loss = loss_of(engine, part_of(batch_of(step)).to(DEVICE))
            engine.backward(loss * factor)
            engine.step()
            losses.append(mean(loss, engine))
        assert_close(losses, expected, tolerance=2e-3)
        assert (engine._core.loss_scale, engine.skipped_steps) == (2.0**15, 1)
        loss_of(engine, part_of(batch_of(0)).to(DEVICE)).backward()
        refuses("engine.scale", engine.step)
        engine.drop_batch()
        engine.save_checkpoint(str(folder / str(stage)))
        engine.destroy()
        _, engine = started(config(stage, **half), Wide)
        for with_states in (False, True):
            engine.load_checkpoint(str(folder / str(stage)), load_optimizer_states=with_states)
            assert engine.skipped_steps == 1
            assert engine._core.loss_scale == (2.0**15 if with_states else 2.0**16)
