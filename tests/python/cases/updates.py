"""Gathers of updated parameters that continue after a step; late ones on the fake GPU."""

import operator

import fake_torch_cuda

from cases.models import *
from cases.training import Reentrant

STAGES = (1, 2)
WIDTH = 16


class Unusual(nn.Module):
    """Reads weights of modules that it does not call, or not yet."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, batch_first=True) if DEVICE.type == "cpu" else None
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH)) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        bias = self.head.bias * 2
        x = self.embedding(tokens)
        x = x if self.rnn is None else self.rnn(x)[0]  # cuDNN's is not on the fake
        x = x + self.attention(x, x, x, need_weights=False)[0] * self.scale
        for block in self.blocks:
            x = x + F.linear(x, block[0].weight) + block(x)
        return self.head(x) + bias


@contextlib.contextmanager
def late_gathers(overlap: bool) -> Iterator[None]:
    """Of engines that overlap them; what the others compute waits for nothing."""
    fake = fake_torch_cuda.installed() if overlap and DEVICE.type == "cuda" else None
    if fake is not None:
        fake.set_delay(3000)
    yield
    if fake is not None:
        fake.set_delay(0)


def made(stage: int, kind: Any, overlap: bool, *, offload: bool = False, **keys: Any) -> Any:
    zero = {"stage": stage, "overlap_comm": True, "reduce_bucket_size": 2000}
    zero |= {"offload_optimizer": {"device": "cpu"}} if offload else {}
    own = {"comm_timeout": 30, "overlap_param_gather": overlap}
    optimizer = keys.pop("optimizer", adamw)
    settings = config(stage, zero_optimization=zero, zerorun=own, **keys)
    return started(settings, kind, optimizer=optimizer)[1]


def trained(stage: int, kind: Any, overlap: bool, **keys: Any) -> tuple[list[float], int]:
    engine = made(stage, kind, overlap, **keys)
    with late_gathers(overlap):
        result = train(engine, 3 * engine.batch.accumulation_steps), engine._core.parameter_hash()
        engine.destroy()
    return result


def case_no_bit_changes() -> None:
    runs: list[tuple[type[nn.Module], dict[str, Any]]] = [
        (Model, {}),
        (Model, {"gradient_accumulation_steps": 2}),
        (Model, BF16),
        (Model, {"optimizer": sgd}),
        (Reentrant, {}),
        (Unusual, {}),
    ]
    for stage in STAGES:
        for kind, keys in runs if stage == 2 else runs[::5]:
            expected = trained(stage, kind, False, **keys)
            assert trained(stage, kind, True, **keys) == expected, (stage, kind, keys)


class Normed(Model):
    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            nn.utils.parametrizations.weight_norm(block.up)


def fail_once(engine: Any, _folder: Path) -> Any:
    def fail(*_: Any) -> None:
        raise ValueError("a program's own")

    hook = engine.module.blocks[1].register_forward_hook(fail)
    with pytest.raises(ValueError, match="own"):
        loss_of(engine, part_of(batch_of(2)))
    hook.remove()
    return engine.module.blocks[2].down.weight.tolist()


def call_a_part(engine: Any, _folder: Path) -> Any:
    return engine.module.blocks[2].up.forward(torch.ones(3, 32).to(DEVICE)).tolist()


def change_in_place(engine: Any, _folder: Path) -> None:
    with torch.no_grad():
        for parameter in engine.module.parameters():
            parameter.clamp_(-0.05, 0.05)


def evaluate(engine: Any, _folder: Path) -> float:
    with torch.no_grad():
        return loss_of(engine.eval(), part_of(batch_of(7))).item()


def save_and_load(engine: Any, folder: Path) -> None:
    engine.save_checkpoint(str(folder))
    train(engine, 1, first=5)
    engine.load_checkpoint(str(folder))


def two_forwards(engine: Any, _folder: Path) -> None:
    losses = [loss_of(engine, part_of(batch_of(step))) for step in (2, 3)]
    engine.backward(sum(losses))
    engine.step()


def read_masters(engine: Any, _folder: Path) -> Any:
    get = safe_get_full_fp32_param
    return [get(p).tolist() for p in list(engine.module.parameters())]


def case_what_a_program_does_between_steps_finds_updated_values(folder: Path) -> None:
    overflows = {"fp16": {"enabled": True, "initial_scale_power": 24}}
    runs: list[tuple[Any, type[nn.Module], dict[str, Any]]] = [
        (call_a_part, Model, {}),
        (change_in_place, Normed, {}),
        (evaluate, Normed, {}),
        (evaluate, Model, overflows),
        (fail_once, Model, {}),
        (read_masters, Model, BF16),
        (save_and_load, Model, BF16),
        (two_forwards, Model, {}),
    ]
    for stage, offload in ((1, False), (2, True)):
        for program, kind, keys in runs:
            results = []
            for overlap in (False, True):
                engine = made(stage, kind, overlap, offload=offload, **keys)
                with late_gathers(overlap):
                    train(engine, 2)
                    found = program(engine, folder / f"{stage} {overlap} {offload}")
                    engine.train()
                    results.append((found, train(engine, 2, first=2)))
                    engine.destroy()
            assert results[0] == results[1], (stage, offload, program, keys)


class Recorder:
    """Stands for the core, and notes what is waited for."""

    def __init__(self, core: Any, events: list[Any]) -> None:
        self._core, self._events = core, events

    def use_parameters(self, ids: list[int]) -> None:
        self._events.append(sorted(ids))
        self._core.use_parameters(ids)

    def finish_updates(self) -> None:
        self._core.finish_updates()


def case_a_forward_waits_for_a_module_when_it_comes_to_it_and_once() -> None:
    engine = made(2, Model, True, gradient_accumulation_steps=2)
    events: list[Any] = []
    engine._shards.updates._core = Recorder(engine._core, events)
    model, ids = engine.module, engine._layout.ids
    own = {name: sorted(ids[p] for p in m.parameters()) for name, m in model.named_modules()}
    names = ["embedding", *(f"blocks.{index}" for index in range(3))]
    for name in names:
        module = model.get_submodule(name)
        module.register_forward_hook(lambda *_, name=name: events.append(name))
    train(engine, 4)  # the first step's metrics look at all parameters
    events.clear()
    train(engine, 2, first=4)
    # Both forwards; only the first one waits, and for a block when it is called.
    expected: list[Any] = [own["embedding"], "embedding"]
    for index in range(3):
        name = f"blocks.{index}"
        parts = [own[f"{name}.{part}"] for part in ("norm", "up", "down")]
        expected += [*parts, name]
    expected.append(own["head"])  # the tied weight, in its other module
    assert events == [*expected, *names], events


def case_a_look_through_a_module_sees_updated_values() -> None:
    def gathered(model: nn.Module) -> dict[str, torch.Tensor]:
        with GatheredParameters(kept):
            return {name: p.clone() for name, p in zip(names, kept, strict=True)}

    ways: list[Callable[[Any], dict[str, torch.Tensor]]] = [
        lambda model: {k: v.clone() for k, v in model.state_dict().items()},
        lambda model: {k: v.detach().clone() for k, v in model.named_parameters()},
        lambda model: dict(copy.deepcopy(model).named_parameters()),
        lambda model: {k: operator.attrgetter(k)(model).detach().clone() for k in names},
        lambda model: {
            f"{path}.{key}": p.clone()
            for path, module in model.named_modules()
            for key, p in dict(module._parameters).items()
            if p is not None
        },
        gathered,
    ]
    for stage in STAGES:
        for way in ways:
            found = []
            for overlap in (False, True):
                engine = made(stage, Model, overlap)
                names, kept = map(list, zip(*engine.module.named_parameters(), strict=True))
                with late_gathers(overlap):
                    train(engine, 2)
                    values = way(engine.module)
                    found.append({name: values[name].tolist() for name in names})
                    engine.destroy()
            assert found[0] == found[1]


def case_a_model_outlives_its_engine() -> None:
    for stage in STAGES:
        results = []
        for overlap in (False, True):
            engine = made(stage, Model, overlap)
            model = engine.module
            kept = list(model.parameters())
            with late_gathers(overlap):
                train(engine, 2)
                engine.destroy()
                results.append([p.tolist() for p in kept])
            assert {type(module._parameters) for module in model.modules()} == {dict}
            assert not any(module._forward_pre_hooks for module in model.modules())
        assert results[0] == results[1]
