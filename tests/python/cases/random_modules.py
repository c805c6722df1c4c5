"""Modules of which random_programs.py draws models, each with what one of them is about."""

import dataclasses
import operator

from torch.nn.utils import parametrizations

from cases.models import *
from cases.packed_weights import PackedLinear

WIDTH = 16


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Checkpointed(Residual):
    reentrant = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + checkpoint(self.inner, x, use_reentrant=self.reentrant and x.requires_grad)


class Reentrant(Checkpointed):
    reentrant = True


class Sometimes(Residual):
    """At odd steps only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if Drawn.step % 2 else x


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


@dataclasses.dataclass(slots=True)
class SlottedData:
    x: torch.Tensor


@dataclasses.dataclass
class OwnData:
    """Contains itself."""

    x: torch.Tensor

    def __post_init__(self) -> None:
        self.whole = [self]


# What may stand around a module's argument and its result, and how to get at what is in it.
Box = tuple[Callable[[Any], Any], Callable[[Any], torch.Tensor]]
BOXES: dict[str, Box] = {
    "a dictionary": (lambda x: {"x": x}, operator.itemgetter("x")),
    "slots": (Slotted, operator.attrgetter("x")),
    "slots in a list": (lambda x: [Slotted(x)], lambda given: given[0].x),
    "a closure": (lambda x: lambda: x, lambda given: given()),
    "a partial": (lambda x: functools.partial(torch.clone, x), lambda given: given()),
    "data with slots": (SlottedData, operator.attrgetter("x")),
    "data in itself": (OwnData, operator.attrgetter("x")),
}


class Unboxing(nn.Module):
    def __init__(self, inner: nn.Module, box: Box) -> None:
        super().__init__()
        self.inner, (self.put, self.take) = inner, box
        self.own = nn.Linear(WIDTH, WIDTH)

    def forward(self, given: Any) -> Any:
        return self.put(self.own(self.inner(self.take(given))))


class Boxed(nn.Module):
    def __init__(self, inner: nn.Module, way: str) -> None:
        super().__init__()
        self.put, self.take = BOXES[way]
        self.units = nn.ModuleList([Unboxing(inner, BOXES[way])])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.take(self.units[0](self.put(x)))


# A weight that a module hands out beside what it computes, and what becomes of both.
WAYS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "as it is": (lambda x, weight: weight, lambda x, given: (x, given)),
    "a view": (lambda x, weight: weight.view(-1).view(weight.shape), lambda *both: both),
    "in a list": (
        lambda x, weight: [{"weight": weight.t()}, x],
        lambda _, given: (given[1], given[0]["weight"].t()),
    ),
    "in an object": (
        lambda x, weight: SimpleNamespace(parts={"x": x}, weight=weight.t()),
        lambda _, given: (given.parts["x"], given.weight.t()),
    ),
}


class Giver(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.1)
        self.give, self.take = WAYS[way]

    def forward(self, x: torch.Tensor) -> Any:
        return self.give(x, self.weight)


class Taker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(torch.tanh(self.up(x)), weight)


class Handing(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.units = nn.ModuleList([Giver(way), Taker()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        giver, taker = self.units
        return x + taker(*giver.take(x, giver(x)))


class Attention(nn.MultiheadAttention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x, x, x, need_weights=False)[0]


class Recurrent(nn.GRU):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[0]


class Convolution(nn.Conv1d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.mT).mT


class Lists(nn.Module):
    """Parameters of its own, one of which no forward reads."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.rand(WIDTH) + 0.5 for _ in range(3))
        self.table = nn.ParameterDict({"shift": torch.randn(WIDTH) * 0.1})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scales[0] * self.scales[2] + self.table["shift"]


class Reading(nn.Module):
    """Uses the weight of another module, which it does not hold."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.others = [other]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.others[0].weight.t()


class Gathering(Reading):
    """With a backward outside of the gather."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with GatheredParameters([self.others[0].weight]):
            return super().forward(x)


class Registered(nn.Module):
    """Reads another module's weight by a way that no attribute access shows."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.hidden = [other.weight]
        register_external_parameter(self, other.weight)
        unregister_external_parameter(self, other.weight)
        register_external_parameter(self, other.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.hidden[0])


class Foreign(nn.Module):
    """Reads the parameters of modules that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.units:
            x = F.linear(x, each.weight, each.bias)
        return x


class Regularised(Foreign):
    """Gathers what it looks at itself, as peft's AdaLoRA does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.units:
            with GatheredParameters(each.weight, fwd_module=self):
                product = each.weight.T @ each.weight
            x = each(x) * product.square().mean().sqrt()
        return x


class Rectified(nn.Sequential):
    """Changes what a unit returns, a view, in place."""

    def __init__(self) -> None:
        up, down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        super().__init__(up, nn.ReLU(inplace=True), down)


class Bypassing(nn.Module):
    """Calls what is in its units, and none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(2))
        self.pairs = nn.ModuleList(
            nn.ModuleDict({"up": nn.Linear(WIDTH, WIDTH), "norm": nn.LayerNorm(WIDTH)})
            for _ in range(2)
        )
        self.cells = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), Recurrent(WIDTH, WIDTH, batch_first=True))
            for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block.down(torch.tanh(checkpoint(block.up, x, use_reentrant=False)))
        for pair in self.pairs:
            x = x + pair["norm"](pair["up"](x))
        for cell in self.cells:
            x = x + cell[1](x)
        return x


class Routing(nn.Module):
    """Each row goes to one of four experts: no rank uses all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Block(WIDTH) for _ in range(BATCH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = RANK * len(x) % BATCH
        return torch.stack([self.experts[first + i](row) for i, row in enumerate(x)])


class Generating(nn.Linear):
    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for _ in range(2):
            yield super().forward(x)


class Summing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts, self.up = Generating(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(sum(self.parts(x)))


class Drawn(nn.Module):
    """A model of drawn layers, and of the kinds with that number."""

    step = 0  # the program's
    met: set[str] = set()  # noqa: RUF012 - kinds of all models

    def __init__(self, draw: random.Random, number: int) -> None:
        super().__init__()
        self.draw = draw
        self.linears: list[nn.Linear] = []
        self.embedding = nn.Embedding(20, WIDTH)
        kinds = [*(self.any_kind(3) for _ in range(draw.randint(0, 3))), *KINDS[number::NUMBERS]]
        self.layers = nn.ModuleList([self.linear(), *(self.made(kind, 3) for kind in kinds)])
        self.unused = nn.Linear(WIDTH, 3) if draw.random() < 0.3 else nn.Identity()
        self.head = nn.Linear(WIDTH, 20, bias=draw.random() < 0.5)
        if draw.random() < 0.4:
            self.head.weight = self.embedding.weight
        for module in list(self.layers):
            if draw.random() < 0.15:
                module.requires_grad_(False)
        del self.draw, self.linears

    def linear(self) -> nn.Linear:
        self.linears.append(nn.Linear(WIDTH, WIDTH, bias=self.draw.random() < 0.7))
        return self.linears[-1]

    def again(self) -> nn.Linear:
        return self.draw.choice(self.linears)

    def any_kind(self, depth: int) -> str:
        return self.draw.choice(KINDS if depth else list(SINGLE))

    def made(self, kind: str, depth: int) -> nn.Module:
        self.met.add(kind)
        if kind in SINGLE:
            return SINGLE[kind](self)
        kinds = [self.any_kind(depth - 1) for _ in range(self.draw.randint(1, 2))]
        return AROUND[kind](nn.Sequential(*(self.made(each, depth - 1) for each in kinds)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


SINGLE: dict[str, Callable[[Drawn], nn.Module]] = {
    "linear": Drawn.linear,
    "again": Drawn.again,
    "reading": lambda model: Reading(model.again()),
    "gathering": lambda model: Gathering(model.again()),
    "registered": lambda model: Registered(model.again()),
    "norm": lambda _: nn.LayerNorm(WIDTH),
    "block": lambda _: Block(WIDTH),
    "packed": lambda _: PackedLinear(width=WIDTH),
    "weight_norm": lambda _: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "attention": lambda _: Attention(WIDTH, 2, batch_first=True),
    "convolution": lambda _: Convolution(WIDTH, WIDTH, 3, padding=1),
    "recurrent": lambda _: Recurrent(WIDTH, WIDTH, batch_first=True),
    **{
        kind.__name__: lambda _, kind=kind: kind()
        for kind in (Lists, Foreign, Regularised, Rectified, Bypassing, Routing, Summing)
    },
    **{way: lambda _, way=way: Handing(way) for way in WAYS},
}
AROUND: dict[str, Callable[[nn.Module], nn.Module]] = {
    **{kind.__name__: kind for kind in (Residual, Checkpointed, Reentrant, Sometimes)},
    **{way: lambda inner, way=way: Boxed(inner, way) for way in BOXES},
}
KINDS = [*SINGLE, *AROUND]
NUMBERS = 8  # so many models have all kinds
