"""Stage 3: modules that hand out their parameters, unusual results, and graphs of gradients."""

import dataclasses

from cases.models import *
from cases.random_modules import WAYS, WIDTH, Giver, OwnData, SlottedData, Taker


def case_what_a_model_returns_of_its_parameters_stays() -> None:
    for way in WAYS:
        giver = make(functools.partial(Giver, way))
        before = giver.weight.detach().clone()
        engine, *_ = initialize(giver, adamw(giver), config=bare_config())
        x = torch.ones(1, 1)
        engine(x)
        _, given = giver.take(x, engine(x))
        assert torch.equal(given.detach().cpu(), before)
        engine.backward((given * given).sum())
        engine.step()
        assert torch.equal(given.detach().cpu(), before)  # the values of its time
        plain = nn.Parameter(before)
        (plain * plain).sum().backward()
        nn.utils.clip_grad_norm_([plain], 1.0)
        torch.optim.AdamW([plain], lr=1e-2, weight_decay=0.1).step()
        value = safe_get_full_fp32_param(giver.weight)
        torch.testing.assert_close(value.cpu(), plain.detach())


class Unpacking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, given: Any) -> torch.Tensor:
        return self.up(given.x)


def case_arguments_may_be_any_dataclasses() -> None:
    _, engine = started(bare_config(), lambda: nn.Sequential(Unpacking(), nn.Linear(WIDTH, WIDTH)))
    x = torch.ones(2, WIDTH, device=engine.device)
    expected = engine(types.SimpleNamespace(x=x))
    for each in (SlottedData(x), OwnData(x)):
        assert torch.equal(engine(each), expected)


@dataclasses.dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    parts: list[OwnData]
    index: torch.Tensor
    kept: "Kept"


@dataclasses.dataclass
class Kept:
    """Of the program, which looks at it after the call."""

    seen: list[int] = dataclasses.field(default_factory=list)


class Summing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, batch: Batch) -> torch.Tensor:
        assert batch.index.dtype == torch.int64
        assert batch.parts[0] is batch.parts[1]
        batch.kept.seen.append(1)
        return self.layer(batch.x) + self.layer(batch.parts[0].x)


def case_inputs_in_dataclasses_are_cast() -> None:
    """As under FSDP2; the program's own objects stay as they are."""
    engine = shard(make(Summing), dtype=torch.bfloat16)
    x = torch.ones(2, WIDTH, device=engine.device)
    part = OwnData(x)
    batch = Batch(x, [part, part], torch.arange(2), Kept())
    assert engine(batch).dtype == torch.bfloat16
    assert batch.x is x
    assert part.x is x
    assert batch.kept.seen == [1]


class Conv1D(nn.Sequential):
    """Shares the name and an attribute of transformers' class, which has a weight of its own."""

    nf = WIDTH


def case_another_class_may_be_named_conv1d() -> None:
    model, engine = started(bare_config(), lambda: Conv1D(nn.Linear(WIDTH, WIDTH)))
    assert model(torch.ones(2, WIDTH, device=engine.device)).shape == (2, WIDTH)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


class Slope(nn.Linear):
    """Takes a gradient, whose backward ends at the input while another waits for this one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.slope, x, use_reentrant=False)

    def slope(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x).square().sum()
        return super().forward(torch.autograd.grad(out, x, create_graph=True)[0])


class Sloping(Critic):
    def __init__(self) -> None:
        super().__init__()
        self.layers[1] = Slope(WIDTH, WIDTH)


def _penalized(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A loss with the norm of its gradient with respect to the input."""
    x = x.detach().requires_grad_()
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    model(x * 2)  # another forward in between
    return out.mean() + ((slope.norm(dim=1) - 1) ** 2).mean()


def case_a_gradient_of_gradients() -> None:
    def data_of(step: int) -> torch.Tensor:
        return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))

    def own(loss: Any, engine: nn.Module, step: int) -> torch.Tensor:
        assert all(parameter.numel() == 0 for parameter in engine.parameters())
        return loss(engine, part_of(data_of(step)).to(engine.device))

    def whole(loss: Any, model: nn.Module, step: int) -> torch.Tensor:
        return loss(model, data_of(step))

    for kind, loss in ((Critic, _penalized), (Sloping, lambda model, x: model(x).mean())):
        expected, plain = reference(kind=kind, steps=5, loss_at=functools.partial(whole, loss))
        model, engine = started(bare_config(), kind)
        assert_close(train(engine, 5, loss_at=functools.partial(own, loss)), expected)
        assert_values(model, plain)


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.full: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x).softmax(-1)
        best = scores.argmax(-1)
        out = torch.zeros_like(x)
        for index in best.unique().tolist():
            # Not by attribute, which would gather them for this call.
            weights = [expert._parameters.get("weight") for expert in self.experts]
            self.full.append(all(weight.numel() > 0 for weight in weights))
            rows = best == index
            out[rows] = self.experts[index](x[rows]) * scores[rows][:, index, None]
        return x + out


class Mixed(Model):
    def __init__(self) -> None:
        super().__init__(width=WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), Mixture()) for _ in range(2))


class Derived(nn.Module):
    def __init__(self, way: Callable[[torch.Tensor, nn.Module], torch.Tensor]) -> None:
        super().__init__()
        self.units, self.way = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2)), way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.units
        return self.way(first(x), second)


def case_units_within_transforms_of_torch_func() -> None:
    def loss_at(model: nn.Module, step: int) -> torch.Tensor:
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))
        return model(x.to(next(model.parameters()).device)).square().mean()

    ways = (
        # What the transform differentiates is not what the unit is given,
        lambda h, unit: torch.func.jvp(lambda x: unit(h) + x, (h * 0,), (h * 0,))[0],
        lambda h, unit: torch.func.grad(lambda x: (unit(h) * x).sum())(torch.ones_like(h)),
        # or only a tangent is in the loss.
        lambda h, unit: torch.func.jvp(unit, (h,), (torch.ones_like(h),))[1],
    )
    for way in ways:
        kind = functools.partial(Derived, way)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's, of its own functions
            expected, _ = reference(sgd, kind, 3, loss_at=loss_at)
        _, engine = started(bare_config(), kind, optimizer=sgd)
        assert_close(train(engine, 3, loss_at=loss_at), expected)


def case_a_leaf_module_is_gathered_as_a_whole() -> None:
    expected, _ = reference(kind=Mixed, steps=3)
    for given, is_whole in (
        ({}, False),
        ({"classes": ["Mixture"]}, True),
        ({"classes": "Mixture"}, True),
        ({"classes": [f"{Mixture.__module__}.Mixture"]}, True),
        ({"classes": [], "names": ["blocks.0.1", "blocks.1.1"]}, True),
        ({"name_suffixes": ".1"}, True),
    ):
        model, engine = started(bare_config({"leaf_module": given}), Mixed)
        names = {unit.name for unit in engine._layout.units}
        assert ("blocks.0.1.experts.2" in names) != is_whole
        assert ("blocks.0.1" in names) == is_whole
        assert_close(train(engine, 3), expected)
        assert all(all(block[1].full) == is_whole for block in model.blocks)


def case_leaf_modules_that_are_not_there() -> None:
    model = make(Mixed)
    for key, name in (("names", "layers.7"), ("name_suffixes", "block_sparse")):
        settings = bare_config({"leaf_module": {key: [name]}})
        text = f"/zero_optimization/leaf_module/{key}: the model has no module for {name}"
        refuses(text, initialize, model, adamw(model), config=settings)


class Coder(nn.Module):
    """Has methods that programs call instead of forward, and that use parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Taker() for _ in range(2))
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH) * 0.1)

    def encode(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) * self.scale
        for block in self.blocks:
            x = block(x, self.weight) @ self.weight
        return x

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encode(tokens))


def _gather_in_methods(model: nn.Module) -> None:
    for name in ("encode", "decode"):
        register_forward_method(model, name)


def case_registered_methods_gather_as_forward_does() -> None:
    expected, plain = reference(kind=Coder)
    for early in (True, False):
        model = make(Coder)
        if early:
            _gather_in_methods(model)
        engine, *_ = initialize(model, adamw(model), config=bare_config())
        if not early:
            _gather_in_methods(model)
        losses = []
        for step in range(STEPS):
            tokens = part_of(batch_of(step)).to(DEVICE)
            logits = model.decode(model.encode(tokens[:, :-1]))
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            engine.step()
            losses.append(mean(loss, engine))
        assert_close(losses, expected)
        assert_values(model, plain)
        assert all(parameter.numel() == 0 for parameter in model.parameters())
        assert copy.deepcopy(model).encode(tokens).shape == (*tokens.shape, WIDTH)
        engine.destroy()
    text = "expected a module and the name of a method of it"
    refuses(text, register_forward_method, model, "scale")
