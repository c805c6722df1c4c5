"""Drawn models, layouts and loops have the losses, norms and parameters of plain PyTorch."""

from collections.abc import Iterable, Mapping

from cases.models import *
from cases.random_modules import KINDS, NUMBERS, Drawn, Routing

PROGRAMS = int(os.environ.get("ZERORUN_PROGRAMS", "8" if "CASE_STEPS" in os.environ else "24"))


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


def layout_of(draw: random.Random, folder: Path, is_bare: bool, alike: bool) -> dict[str, Any]:
    """The sections of a configuration that change no number. Bare: stage 3, where nothing stays
    gathered after its use; `alike`: all ranks gather the same, as parameters in files need it."""
    host, file = {"device": "cpu"}, {"device": "nvme", "nvme_path": str(folder), "max_in_cpu": 0}
    stage = 3 if is_bare else draw.choice(STAGES)
    zero = {"stage": stage, "reduce_bucket_size": draw.choice((0, 300, 5000, 10**6))}
    zero["overlap_comm"] = draw.random() < 0.5
    if stage and draw.random() < 0.4:
        zero["offload_optimizer"] = draw.choice((host, {**host, "ratio": 0.3}))
    if stage == 3:
        zero["stage3_param_persistence_threshold"] = 0 if is_bare else draw.choice((0, 100, 10**5))
        for key in ("stage3_max_live_parameters", "stage3_max_reuse_distance"):
            zero[key] = 0 if is_bare else draw.choice((0, 10**9))
        zero["offload_param"] = draw.choice(({"device": "none"}, host, file)[: 2 + alike])
    own = {"comm_timeout": 30, "share_parameters": not PRIVATE_MEMORY and draw.random() < 0.7}
    own["overlap_param_gather"] = stage in {1, 2} and draw.random() < 0.5
    return {"zero_optimization": zero, "zerorun": own}


def chosen(of: Iterable[Any], which: float) -> Any:
    parts = list(of)
    return parts[int(which * len(parts))]


class Program:
    """A loop by PyTorch alone; `Sharded` does the same on ranks."""

    ways: tuple[str, ...] = ("counted", "bounded", "added up", "held back")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.model = self.make(draw)
        self.optimizer = optimizer_of(draw, self.model)
        self.schedule = self.scheduled() if draw.random() < 0.5 else None
        self.clip = draw.choice((0.0, 0.05, 1.0))
        self.micro_steps = draw.choice((1, 1, 2))
        self.late = draw.random() < 0.5  # backwards after all forwards
        # How an engine is told of them; each way adds up in an order of its own.
        self.way = draw.choice(self.ways)
        self.own = self.way in {"counted", "added up"} and draw.random() < 0.5  # backward
        self.own = self.own and len(self.ways) > 1
        self.counts = self.way == "counted" or (self.way == "bounded" and draw.random() < 0.5)
        self.frozen, self.frozen_in = nn.Parameter(), set[int]()  # micro-steps

    def scheduled(self) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.7)

    def make(self, draw: random.Random) -> Drawn:
        return Drawn(draw, self.seed % NUMBERS)

    def rows(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens

    def mean(self, loss: torch.Tensor) -> float:
        return loss.item()

    def loss(self, index: int) -> torch.Tensor:
        source = torch.Generator().manual_seed(index)
        tokens = self.rows(torch.randint(0, 20, (BATCH, 6), generator=source)).to(DEVICE)
        return F.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def step_loss(self, micro: int) -> torch.Tensor:
        self.frozen.requires_grad_(micro not in self.frozen_in)
        return self.loss(10 * Drawn.step + micro)

    def step(self) -> tuple[float, float]:
        """The mean loss, and the norm before clipping."""
        losses, waiting = [], []
        for micro in range(self.micro_steps):
            losses.append(self.step_loss(micro))
            waiting.append(losses[-1] / self.micro_steps)
            while waiting and not (self.late and micro + 1 < self.micro_steps):
                waiting.pop().backward()
        self.fill()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip or math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return sum(map(self.mean, losses)) / self.micro_steps, norm.item()

    def check(self) -> None:
        """What must be true in the end."""

    def fill(self) -> None:
        """Of parameters that no loss reads, an engine's gradients are zero."""
        for parameter in self.model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    # What may come before a step, with a part of the model from 0 to 1.

    def nothing(self, _: float) -> None:
        pass

    def evaluate(self, _: float) -> float:
        with torch.no_grad():
            return self.mean(self.loss(999))

    def evaluate_copy(self, which: float) -> float:
        own, self.model = self.model, copy.deepcopy(self.model)
        value = self.evaluate(which)
        with torch.no_grad():  # which is the copy's alone
            for parameter in self.model.parameters():
                parameter.zero_()
        self.model = own
        return value

    def forget(self, _: float) -> None:
        """A backward that no step uses."""
        self.loss(998).backward()
        self.optimizer.zero_grad()

    def interrupt(self, which: float) -> None:
        """A forward in the middle."""

        def fail(*_: object) -> None:
            raise KeyboardInterrupt

        hook = chosen(self.model.layers, which).register_forward_pre_hook(fail)
        with pytest.raises(KeyboardInterrupt):
            self.loss(997)
        hook.remove()

    def change_rate(self, _: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5

    def reload_states(self, _: float) -> None:
        self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))

    def freeze(self, which: float) -> None:
        """A parameter for micro-steps; what has no gradient is not stepped, which Adam counts."""
        trained = [p for p in self.model.layers.parameters() if p.requires_grad]
        within = chosen(({0}, {1}, {0, 1}), which)
        if trained and not self.late and not (isinstance(self.optimizer, ADAMS) and 0 in within):
            self.frozen, self.frozen_in = chosen(trained, 1 - which), within

    def halve(self, which: float) -> None:
        """A parameter's values."""
        with torch.no_grad():
            chosen(self.floats(), which).mul_(0.5)

    def floats(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.is_floating_point()]

    def restart(self, _: float) -> None:
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

    def check(self) -> None:
        self.engine._core.parameter_hash()  # an error if copies differ

    def fill(self) -> None:
        pass

    def halve(self, which: float) -> None:
        parameter = chosen(self.floats(), which)
        with GatheredParameters(parameter, modifier_rank=WORLD_SIZE - 1):
            if RANK == WORLD_SIZE - 1:
                parameter.data.mul_(0.5)

    def restart(self, _: float) -> None:
        self.engine.save_checkpoint(self.folder, "saved")
        self.engine.destroy()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1)
        self.start()
        self.engine.load_checkpoint(self.folder, "saved")


class Configured(Sharded):
    """With the engine of `initialize`."""

    precision: Mapping[str, object] = {}
    is_bare = False

    def start(self) -> None:
        keys = {"gradient_accumulation_steps": self.micro_steps if self.counts else 1}
        keys["gradient_clipping"] = self.clip
        self.optimizer._opt_called = True  # as accelerate tells a schedule
        alike = not any(isinstance(module, Routing) for module in self.model.modules())
        keys |= layout_of(self.draw, self.folder, self.is_bare, alike) | self.precision
        self.engine = initialize(self.model, self.optimizer, config=config(0, **keys))[0]

    def step(self) -> tuple[float, float]:
        engine, total = self.engine, 0.0
        for micro in range(self.micro_steps):
            ends = micro == self.micro_steps - 1
            if self.way == "bounded":  # as Hugging Face's Trainer says it
                engine.set_gradient_accumulation_boundary(is_boundary=ends)
            loss = self.step_loss(micro)
            total += self.mean(loss) / self.micro_steps
            loss = loss if self.way == "counted" else loss / self.micro_steps
            holds = self.way == "held back" and not ends
            with engine.no_sync() if holds else contextlib.nullcontext():
                if holds:
                    with engine.no_sync():
                        raises(zerorun.InternalError, "no_sync", engine.step)
                if self.own:
                    loss.backward()
                else:
                    engine.backward(loss, scale_wrt_gas=self.way != "bounded")
            if self.way == "counted":
                assert engine.is_gradient_accumulation_boundary() == ends
            if self.way == "counted" or ends:
                engine.step()
        full = [parameter for parameter in self.model.parameters() if parameter.numel() > 0]
        assert not (self.is_bare and full)
        return total, engine.get_global_grad_norm()

    def forget(self, _: float) -> None:
        ways = ["drop", "load"]
        if self.micro_steps == 1 and self.way != "bounded":  # elsewhere it keeps micro-steps
            ways.append("zero_grad")
        way = self.draw.choice(ways)
        if way == "load":
            self.engine.save_checkpoint(self.folder, "before")
        self.engine.backward(self.loss(998))
        if way == "drop":
            self.engine.drop_batch()
        elif way == "zero_grad":
            self.optimizer.zero_grad()
        else:
            self.engine.step()
            self.engine.load_checkpoint(self.folder, "before")


class Bare(Configured):
    is_bare = True


class Initialized(Configured):
    is_bare = PRIVATE_MEMORY

    def make(self, draw: random.Random) -> Drawn:
        with Init():
            return super().make(draw)


class Counted(Configured):
    ways = ("counted",)


class Low(Counted):
    precision = BF16


class Cast(Counted):
    precision = AUTOCAST


ADAMS = (torch.optim.Adam, torch.optim.AdamW)
ACTIONS = ("nothing", "evaluate", "evaluate_copy", "forget", "interrupt", "change_rate")
ACTIONS += ("reload_states", "freeze", "halve", "restart")


def run(program: Program) -> list[torch.Tensor]:
    """What was evaluated before each step, its loss and norm, and the parameters in the end."""
    draw = random.Random(-program.seed)
    found = []
    program.schedule = program.schedule or program.scheduled()
    for Drawn.step in range(5):
        value = getattr(program, draw.choice(ACTIONS))(draw.random())
        found.append(torch.tensor([value or 0.0, *program.step()], dtype=torch.float64))
        program.frozen.requires_grad_()
        program.frozen_in = set()
        program.schedule.step()
    program.check()
    with GatheredParameters(parameters := list(program.model.parameters())):
        found += [parameter.detach().cpu().clone() for parameter in parameters]
    end_engines()
    return found


def case_drawn_programs_compute_what_pytorch_does(folder: Path) -> None:
    Drawn.met.clear()
    # With three kinds of engines, 24 programs have a model of each number with each of them.
    kinds = (Bare if PRIVATE_MEMORY else Sharded, Bare, Initialized)
    for seed in range(PROGRAMS):
        kind = (kinds if seed < 3 * NUMBERS else (*kinds, Configured))[seed % len(kinds)]
        expected, found = run(Program(seed)), run(kind(seed, seed, folder))
        about = f"{kind.__name__}, seed {seed}: "
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5, msg=about.__add__)
    assert Drawn.met == set(KINDS)


def case_drawn_layouts_have_the_same_bits(folder: Path) -> None:
    for seed in range(PROGRAMS // 2):
        kind = (Counted, Low, Cast)[seed % 3]
        sides = [run(kind(seed, layouts, folder)) for layouts in (seed, seed + 10_000)]
        about = f"{kind.__name__}, seed {seed}: "
        torch.testing.assert_close(*sides, rtol=0, atol=0, msg=about.__add__)
