"""Stage 3: modules that hand out their parameters, unusual results, and graphs of gradients."""

import copy
import dataclasses
import functools
from typing import Any

import torch
import torch.nn.functional as F
import zerorun
from tied_model import VOCABULARY
from torch import nn

from cases.models import *

WIDTH = 32


def check(kind: type[nn.Module], steps: int = 5) -> None:
    """Losses and parameters are those of torch in one process."""
    expected, plain = reference(kind=kind, steps=steps)
    model, engine = started(bare_config(), kind)
    assert_close(train(engine, steps), expected)
    assert_values(model, plain)
    assert all(parameter.numel() == 0 for parameter in model.parameters())


class Giver(nn.Module):
    """Hands out its weight: as it is, as a view, or within an object."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH) * 0.1)
        self.how = how

    def forward(self, x: torch.Tensor) -> Any:
        if self.how == "parameter":
            return self.weight
        if self.how == "view":
            return self.weight.view(-1).view(VOCABULARY, WIDTH)
        if self.how == "transposed in a list":
            return [{"weight": self.weight.t()}, x]
        return Result(x, self.weight.t())


class Result:
    """Neither a container nor a dataclass."""

    def __init__(self, x: torch.Tensor, weight: torch.Tensor) -> None:
        self.parts = {"x": x}
        self.weight = weight


class Slotted:
    __slots__ = ("hidden",)

    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden


class Taker(nn.Module):
    """Uses a weight that is handed out to it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(torch.tanh(self.up(x)), weight)


class Handing(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.giver = Giver(how)
        self.taker = Taker()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        given = self.giver(x)
        if isinstance(given, list):
            return self.taker(given[1], given[0]["weight"].t())
        if isinstance(given, Result):
            return self.taker(given.parts["x"], given.weight.t())
        return self.taker(x, given)


HOW = ("parameter", "view", "transposed in a list", "object")


def case_a_module_returns_its_parameter_or_a_view_of_it() -> None:
    for how in HOW:
        check(functools.partial(Handing, how))


class Chain(nn.Sequential):
    """No module of the program's own is around the one that hands out a view."""

    def __init__(self) -> None:
        super().__init__(nn.Embedding(VOCABULARY, WIDTH), Giver("view"))


def case_what_a_model_returns_of_its_parameters_stays() -> None:
    for how in HOW:
        torch.manual_seed(0)
        giver = Giver(how)
        before = giver.weight.detach().clone()
        engine, *_ = initialize(giver, adamw(giver), config=bare_config())
        engine(torch.ones(1, 1))
        given = engine(torch.ones(1, 1))
        if isinstance(given, list):
            given = given[0]["weight"].t()
        elif isinstance(given, Result):
            given = given.weight.t()
        assert torch.equal(given.detach().cpu(), before)
        engine.backward((given * given).sum())
        engine.step()
        assert torch.equal(given.detach().cpu(), before)  # the values of its time
        plain = nn.Parameter(before)
        (plain * plain).sum().backward()
        nn.utils.clip_grad_norm_([plain], 1.0)
        torch.optim.AdamW([plain], lr=1e-2, weight_decay=0.1).step()
        value = zerorun.zero.safe_get_full_fp32_param(giver.weight)
        torch.testing.assert_close(value.cpu(), plain.detach())


class HiddenResult(nn.Module):
    """Its block's results are in objects of several kinds."""

    kinds = (Slotted, lambda x: [Slotted(x)], lambda x: lambda: x)

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Wrapping(kind) for kind in self.kinds)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            result = layer(x)
            result = result[0] if isinstance(result, list) else result
            x = result.hidden if isinstance(result, Slotted) else result()
        return self.head(x)


class Wrapping(nn.Module):
    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)
        self.wrap = wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(x + self.down(torch.tanh(self.up(x))))


def case_results_may_be_any_objects() -> None:
    check(HiddenResult)


@dataclasses.dataclass(slots=True)
class SlottedInput:
    tokens: torch.Tensor


@dataclasses.dataclass
class OwnInput:
    """Contains itself."""

    tokens: torch.Tensor
    whole: Any = None


class Unpacking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, given: Any) -> torch.Tensor:
        return self.up(given.tokens)


def case_arguments_may_be_any_dataclasses() -> None:
    _, engine = started(bare_config(), lambda: nn.Sequential(Unpacking(), nn.Linear(WIDTH, WIDTH)))
    x = torch.ones(2, WIDTH, device=engine.device)
    expected = engine(OwnInput(x))
    given = OwnInput(x)
    given.whole = [given]
    for each in (SlottedInput(x), given):
        assert torch.equal(engine(each), expected)


class Conv1D(nn.Module):
    """Shares the name and an attribute of transformers' class, which has a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.nf = WIDTH
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def case_another_class_may_be_named_conv1d() -> None:
    model, engine = started(bare_config(), Conv1D)
    assert model(torch.ones(2, WIDTH, device=engine.device)).shape == (2, WIDTH)


class Critic(nn.Module):
    """As WGAN-GP has them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


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

    def own(engine: nn.Module, step: int) -> torch.Tensor:
        assert all(parameter.numel() == 0 for parameter in engine.parameters())
        return _penalized(engine, part_of(data_of(step)).to(engine.device))

    expected, plain = reference(
        kind=Critic, steps=5, loss_at=lambda model, step: _penalized(model, data_of(step))
    )
    model, engine = started(bare_config(), Critic)
    assert_close(train(engine, 5, loss_at=own), expected)
    assert_values(model, plain)


def case_hessian_vector_products() -> None:
    """Of the parameters' gradients, twice, without a step."""
    plain = make(Critic)
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))

    def product(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        x = x.detach().requires_grad_()
        out = (model(x) ** 2).mean()
        (slope,) = torch.autograd.grad(out, x, create_graph=True)
        return [out.detach(), *torch.autograd.grad((slope**2).sum(), x)]

    _, engine = started(bare_config(), Critic)
    for _ in range(2):
        for found, expected in zip(product(engine, x), product(plain, x), strict=True):
            torch.testing.assert_close(found.cpu(), expected)


class Mixture(nn.Module):
    """A mixture of experts: each token goes to one of them."""

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


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), Mixture()) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def case_a_leaf_module_is_gathered_as_a_whole() -> None:
    expected, _ = reference(kind=Mixed, steps=3)
    for given, is_whole in (
        ({}, False),
        ({"classes": ["Mixture"]}, True),
        ({"classes": [f"{Mixture.__module__}.Mixture"]}, True),
        ({"classes": [], "names": ["layers.0.1", "layers.1.1"]}, True),
        ({"name_suffixes": [".1"]}, True),
    ):
        settings = bare_config()
        settings["zero_optimization"]["leaf_module"] = given
        model, engine = started(settings, Mixed)
        names = {unit.name for unit in engine._layout.units}
        assert ("layers.0.1.experts.2" in names) != is_whole
        assert ("layers.0.1" in names) == is_whole
        assert_close(train(engine, 3), expected)
        assert all(all(layer[1].full) == is_whole for layer in model.layers)


def case_leaf_modules_that_are_not_there() -> None:
    model = make(Mixed)
    for key, name in (("names", "layers.7"), ("name_suffixes", "block_sparse")):
        settings = bare_config()
        settings["zero_optimization"]["leaf_module"] = {key: ["layers.0.1", name][-1:]}
        text = f"/zero_optimization/leaf_module/{key}: the model has no module for {name}"
        refuses(text, initialize, model, adamw(model), config=settings)
    assert model.head.weight.numel() > 0


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
        zerorun.zero.register_forward_method(model, name)


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
    refuses(text, zerorun.zero.register_forward_method, model, "scale")
