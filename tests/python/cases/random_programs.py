"""Drawn models, layouts and loops have the losses, norms and parameters of plain PyTorch."""

import copy
import os
import random
from collections.abc import Mapping
from pathlib import Path

import torch
import zerorun
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from cases.models import *

WIDTH = 16
PROGRAMS = int(os.environ.get("ZERORUN_PROGRAMS", "8" if "CASE_STEPS" in os.environ else "24"))


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


class Named(nn.Module):
    """Takes and returns a dictionary."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"x": self.inner(given["x"])}


class Boxed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = Named(inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner({"x": x})["x"]


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


class Drawn(nn.Module):
    step = 0  # the program's

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.draw = draw
        self.linears: list[nn.Linear] = []
        self.embedding = nn.Embedding(20, WIDTH)
        self.layers = self.sequence(3, 5)
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

    def sequence(self, depth: int, longest: int) -> nn.Sequential:
        return nn.Sequential(*(self.layer(depth) for _ in range(self.draw.randint(1, longest))))

    def layer(self, depth: int) -> nn.Module:
        kinds: list[Callable[[], nn.Module]] = [
            self.linear,
            lambda: nn.LayerNorm(WIDTH),
            lambda: nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH)),
            lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
            lambda: Attention(WIDTH, 2, batch_first=True),
            lambda: Convolution(WIDTH, WIDTH, 3, padding=1),
            lambda: Recurrent(WIDTH, WIDTH, batch_first=True),
            Lists,
        ]
        if self.linears:
            again = self.draw.choice(self.linears)
            kinds += [lambda: again, lambda: Reading(again)]
        if depth:
            kinds.append(lambda: self.sequence(depth - 1, 3))
            for kind in (Residual, Checkpointed, Reentrant, Sometimes, Boxed):
                kinds.append(lambda kind=kind: kind(self.layer(depth - 1)))
        return self.draw.choice(kinds)()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens)))


def optimizer_of(draw: random.Random, model: nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [{"params": trained}]
    if draw.random() < 0.5 and len(trained) > 1:
        cut = draw.randrange(1, len(trained))
        groups = [{"params": trained[:cut], "lr": 2e-3}, {"params": trained[cut:]}]
    kind = draw.choice(("AdamW", "Adam", "SGD", "Adagrad", "RMSprop"))
    if kind == "SGD":
        return torch.optim.SGD(groups, lr=0.1, momentum=draw.choice((0.0, 0.9)))
    # With a large eps, rounding in a gradient that should be zero does not become a step.
    return getattr(torch.optim, kind)(groups, lr=5e-3, eps=1e-3)


def layout_of(draw: random.Random, folder: Path) -> dict[str, object]:
    """The section of a configuration that changes no number."""
    stage = draw.choice(STAGES)
    zero = {
        "stage": stage,
        "reduce_bucket_size": draw.choice((1, 300, 5000, 10**6)),
        "overlap_comm": draw.random() < 0.5,
    }
    if stage and draw.random() < 0.4:
        zero["offload_optimizer"] = {"device": "cpu"}
    if stage == 3:
        zero["stage3_param_persistence_threshold"] = draw.choice((0, 100, 10**5))
        zero["stage3_max_live_parameters"] = draw.choice((0, 10**9))
        zero["stage3_max_reuse_distance"] = draw.choice((0, 10**9))
        if (place := draw.choice(("none", "cpu", "nvme"))) != "none":
            zero["offload_param"] = {"device": place, "nvme_path": str(folder), "max_in_cpu": 0}
    return zero


class Program:
    """A loop by PyTorch alone; `Sharded` does the same on ranks."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.model = self.make(draw)
        self.optimizer = optimizer_of(draw, self.model)
        self.clip = draw.choice((0.0, 0.05, 1.0))
        self.micro_steps = draw.choice((1, 1, 2))

    def make(self, draw: random.Random) -> Drawn:
        return Drawn(draw)

    def rows(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens

    def mean(self, loss: torch.Tensor) -> float:
        return loss.item()

    def loss(self, index: int) -> torch.Tensor:
        source = torch.Generator().manual_seed(index)
        tokens = self.rows(torch.randint(0, 20, (BATCH, 6), generator=source)).to(DEVICE)
        return F.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def step(self) -> tuple[float, float]:
        """The mean loss, and the norm before clipping."""
        losses = [self.loss(10 * Drawn.step + micro) for micro in range(self.micro_steps)]
        for loss in losses:
            (loss / self.micro_steps).backward()
        self.fill()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip or math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return sum(map(self.mean, losses)) / self.micro_steps, norm.item()

    def fill(self) -> None:
        """Of parameters that no loss reads, an engine's gradients are zero."""
        for parameter in self.model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    # What may come before a step.

    def nothing(self) -> None:
        pass

    def evaluate(self) -> float:
        with torch.no_grad():
            return self.mean(self.loss(999))

    def forget(self) -> None:
        """A backward that no step uses."""
        self.loss(998).backward()
        self.optimizer.zero_grad()

    def change_rate(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5

    def reload_states(self) -> None:
        self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))

    def halve(self, which: float) -> None:
        """A parameter's values."""
        parameters = list(self.model.parameters())
        with torch.no_grad():
            parameters[int(which * len(parameters))].mul_(0.5)

    def restart(self) -> None:
        """From a checkpoint, with another layout."""


class Sharded(Program):
    """The same lines after `shard`, on this rank's rows."""

    def __init__(self, seed: int, layouts: int, folder: Path) -> None:
        super().__init__(seed)
        self.folder, self.draw = folder, random.Random(layouts)
        self.start()

    def start(self) -> None:
        stage = self.draw.choice(STAGES)
        self.engine = shard(self.model, stage=stage, optimizer=self.optimizer)

    def rows(self, tokens: torch.Tensor) -> torch.Tensor:
        return part_of(tokens)

    def mean(self, loss: torch.Tensor) -> float:
        return mean(loss, self.engine)

    def fill(self) -> None:
        pass

    def halve(self, which: float) -> None:
        parameter = (parameters := list(self.model.parameters()))[int(which * len(parameters))]
        with zerorun.zero.GatheredParameters(parameter, modifier_rank=WORLD_SIZE - 1):
            if RANK == WORLD_SIZE - 1:
                parameter.data.mul_(0.5)

    def restart(self) -> None:
        self.engine.save_checkpoint(self.folder, "saved")
        self.engine.destroy()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1.0)
        self.start()
        self.engine.load_checkpoint(self.folder, "saved")


class Configured(Sharded):
    """With the engine of `initialize`."""

    precision: Mapping[str, object] = {}

    def start(self) -> None:
        keys = {"gradient_accumulation_steps": self.micro_steps, "gradient_clipping": self.clip}
        settings = config(
            0, zero_optimization=layout_of(self.draw, self.folder), **keys, **self.precision
        )
        self.engine = initialize(self.model, self.optimizer, config=settings)[0]

    def step(self) -> tuple[float, float]:
        losses = []
        for micro in range(self.micro_steps):
            losses.append(self.loss(10 * Drawn.step + micro))
            self.engine.backward(losses[-1])
            self.engine.step()
        return sum(map(self.mean, losses)) / self.micro_steps, self.engine.get_global_grad_norm()

    def forget(self) -> None:
        self.engine.backward(self.loss(998))
        self.engine.drop_batch()


class Initialized(Configured):
    def make(self, draw: random.Random) -> Drawn:
        with zerorun.zero.Init():
            return super().make(draw)


class Low(Configured):
    precision = BF16


ACTIONS = ("nothing", "evaluate", "forget", "change_rate", "reload_states", "halve", "restart")


def run(program: Program) -> list[torch.Tensor]:
    """What was evaluated before each step, its loss and norm, and the parameters in the end."""
    draw = random.Random(-program.seed)
    found = []
    for Drawn.step in range(5):
        action = draw.choice(ACTIONS)
        value = getattr(program, action)(*([draw.random()] if action == "halve" else []))
        found.append(torch.tensor([value or 0.0, *program.step()], dtype=torch.float64))
    with zerorun.zero.GatheredParameters(parameters := list(program.model.parameters())):
        found += [parameter.detach().cpu().clone() for parameter in parameters]
    end_engines()
    return found


def case_drawn_programs_compute_what_pytorch_does(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(PROGRAMS):
        kind = (Sharded, Configured, Initialized)[seed % 3]
        expected, found = run(Program(seed)), run(kind(seed, seed, folder))
        about = f"seed {seed}: "
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5, msg=about.__add__)


def case_drawn_layouts_have_the_same_bits(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(PROGRAMS // 2):
        kind = (Configured, Low)[seed % 2]
        sides = [run(kind(seed, layouts, folder)) for layouts in (seed, seed + 10_000)]
        torch.testing.assert_close(*sides, rtol=0, atol=0, msg=f"seed {seed}: ".__add__)
