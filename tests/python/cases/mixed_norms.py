"""Batch and instance norms in 16 bits, whose running statistics stay fp32."""

import deepspeed

from cases import models
from cases.models import *

STEPS = 4
ROWS, CHANNELS = 4, 8


class Calling(nn.BatchNorm2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(super().forward(x))


class Direct(nn.BatchNorm2d):
    """A forward of its own around torch's function, as timm has it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.weight.dtype
        mean, var = self.running_mean, self.running_var
        return F.relu(F.batch_norm(x, mean, var, self.weight, self.bias, self.training, 0.1))


class Normed(nn.Module):
    synced, recomputes, reentrant = True, False, False

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, CHANNELS, 3)
        norms = [nn.BatchNorm2d, Calling, Direct]
        if self.synced and DEVICE.type == "cpu" and not dist.is_initialized():
            norms.append(nn.SyncBatchNorm)  # which torch has between processes on GPUs only
        self.norms = nn.Sequential(
            *(kind(CHANNELS) for kind in norms),
            nn.BatchNorm2d(CHANNELS, affine=False),
            nn.InstanceNorm2d(CHANNELS, affine=True, track_running_stats=True),
        )
        self.mixed = nn.Linear(CHANNELS, CHANNELS)
        self.norm = nn.BatchNorm1d(CHANNELS, momentum=None)
        self.head = nn.Linear(CHANNELS, 1)
        for module in self.modules():
            if getattr(module, "running_var", None) is not None and module.affine:
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.uniform_(module.bias, -0.5, 0.5)

    def call(self, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if self.recomputes and self.training:
            return checkpoint(module, x, use_reentrant=self.reentrant)
        return module(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.call(self.norms, self.first(x)).mean((2, 3))
        return self.head(self.call(self.norm, self.mixed(x)))


class InScript(Normed):
    """In a script of DeepSpeed, whose engine starts a process group and rounds the masters."""

    synced = False


class Checkpointed(Normed):
    recomputes = True


class Reentrant(Checkpointed):
    reentrant = True


def images(step: int) -> torch.Tensor:
    """The same on all ranks, so that statistics and gradients are those of one process."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(ROWS, 3, 6, 6, generator=generator).to(DEVICE) + 0.5


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x).float() - x.float().mean((1, 2, 3))[:, None]).square().mean()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def torch_alone(dtype: torch.dtype, kind: type[Normed] = Normed) -> tuple[list[float], nn.Module]:
    """By hand: fp32 masters, and a model with their values in `dtype`, in fp32 in norms."""
    model = make(kind).to(DEVICE)
    rounded = dtype if kind is InScript else torch.float32
    values = [p.detach().to(rounded) for p in model.parameters()]
    masters = [nn.Parameter(value.float().clone()) for value in values]
    optimizer = torch.optim.SGD(masters, lr=0.05)
    for module in model.modules():
        if not hasattr(module, "running_var"):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(dtype)
    losses = []
    for step in range(STEPS):
        for parameter, master in zip(model.parameters(), masters, strict=True):
            parameter.data.copy_(master.data.to(dtype))
            parameter.grad = None
        loss = loss_of(model, images(step).to(dtype))
        (loss * 16).backward()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad = parameter.grad.to(dtype).float() / 16
        optimizer.step()
        losses.append(loss.item())
    for parameter, master in zip(model.parameters(), masters, strict=True):
        parameter.data.copy_(master.data.to(dtype))
    return losses, model.eval()


def train(engine: zerorun.ZeroEngine, dtype: torch.dtype) -> list[float]:
    return models.train(engine, STEPS, 0, lambda each, at: loss_of(each, images(at).to(dtype)))


def assert_statistics(found: nn.Module, expected: nn.Module) -> None:
    buffers = (dict(model.named_buffers()) for model in (found, expected))
    torch.testing.assert_close(*buffers, rtol=0.01, atol=0.01)


def settings(stage: int, keys: dict[str, object]) -> dict[str, object]:
    return config(stage, gradient_clipping=0.0, **keys)


def started(model: nn.Module, stage: int, keys: dict[str, object]) -> zerorun.ZeroEngine:
    return initialize(model, sgd(model), config=settings(stage, keys))[0]


def case_they_train_as_with_fp32_parameters_of_16_bit_values() -> None:
    """Also under activation checkpointing, in shard and in scripts of DeepSpeed."""

    def sharded(model: nn.Module, stage: int, _keys: object) -> zerorun.ZeroEngine:
        return shard(model, stage=stage, optimizer=sgd(model), dtype=torch.bfloat16)

    def script(model: nn.Module, stage: int, keys: dict[str, object]) -> zerorun.ZeroEngine:
        given = {"optimizer": sgd(model), "config": settings(stage, keys)}
        return kept(deepspeed.initialize(model=model, **given))[0]

    half = {"fp16": {"enabled": True, "loss_scale": 16}}
    rows = (
        (started, Normed, torch.bfloat16, BF16),
        (started, Normed, torch.float16, half),
        (started, Checkpointed, torch.bfloat16, BF16),
        (started, Reentrant, torch.bfloat16, BF16),
        (sharded, Normed, torch.bfloat16, BF16),
        (script, InScript, torch.bfloat16, BF16),
    )
    for (start, kind, dtype, keys), stage in itertools.product(rows, STAGES):
        expected, plain = torch_alone(dtype, kind)
        model = make(kind)
        engine = start(model, stage, keys)
        losses = train(engine, dtype)
        assert losses == pytest.approx(expected, rel=0.01), (start, kind, dtype)
        assert {buffer.dtype for buffer in model.buffers()} == {torch.float32, torch.int64}
        assert_statistics(model, plain)
        engine.eval()
        x = images(STEPS).to(dtype)
        with torch.no_grad():
            torch.testing.assert_close(engine(x), plain(x), rtol=0.05, atol=0.05)
        assert_statistics(model, plain)


def case_modules_are_as_they_were() -> None:
    model = make(Normed)
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    engine = started(model, 1, BF16)
    train(engine, torch.bfloat16)
    assert model.norms[2].seen == torch.bfloat16
    copied = copy.deepcopy(engine.module)
    engine.destroy()
    vars(model.norms[2]).pop("seen")
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    for module in (model, copied):
        assert module.norm.weight.dtype == torch.bfloat16
        assert module.norm.running_mean.dtype == torch.float32
        assert math.isfinite(loss_of(module, images(0).bfloat16()).item())


def case_nothing_is_cast_where_nothing_is_mixed() -> None:
    low = BF16 | {"data_types": {"buffer_dtype": "bf16"}}
    for keys, dtype in (({}, torch.float32), (low, torch.bfloat16)):
        model = make(Normed)
        engine = started(model, 2, keys)
        result = engine.module.norm(torch.randn(ROWS, CHANNELS, device=DEVICE, dtype=dtype))
        nodes = {type(node).__name__ for node, _ in result.grad_fn.next_functions if node}
        assert "ToCopyBackward0" not in nodes, nodes
        assert model.norm.running_mean.dtype == dtype


def case_norms_can_still_be_scripted_and_compiled() -> None:
    model = make(Normed)
    started(model, 0, BF16)
    x = torch.randn(ROWS, CHANNELS, 3, 3, device=DEVICE)
    for kind in (nn.BatchNorm2d, nn.InstanceNorm2d):
        norm = kind(CHANNELS, affine=True, track_running_stats=True).to(DEVICE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its age
            scripted = torch.jit.script(copy.deepcopy(norm))
        torch.testing.assert_close(scripted(x), norm(x))
        mixed = kind(CHANNELS, affine=True, track_running_stats=True).to(DEVICE)
        mixed.weight.data, mixed.bias.data = mixed.weight.bfloat16(), mixed.bias.bfloat16()
        compiled = torch.compile(copy.deepcopy(mixed), backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x.bfloat16()), mixed(x.bfloat16()))
