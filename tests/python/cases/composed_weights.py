"""Weights that are made of other tensors, as torchao's quantized ones are."""

from __future__ import annotations

from torch.utils._pytree import tree_map_only

from cases.models import *

WIDTH = 16


class Scaled(torch.Tensor):
    """Codes and a scale, which every function but a copy multiplies first."""

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> Scaled:
        own = {"dtype": scale.dtype, "device": codes.device}
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, **own)

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, _meta: Any, _size: Any, _stride: Any) -> Scaled:
        return cls(**parts)

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale)
        given = tree_map_only(cls, lambda t: t.codes * t.scale, (args, kwargs or {}))
        return func(*given[0], **given[1])


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, bias=False)
        codes = torch.randint(-8, 8, (WIDTH, WIDTH)).to(torch.int8)
        weight = Scaled(codes, torch.rand(WIDTH, 1) * 2**RANK)  # all get rank 0's
        self.base.weight = nn.Parameter(weight, requires_grad=False)
        self.adapter = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.adapter(x)


def loss_at(model: nn.Module, step: int) -> torch.Tensor:
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))
    return model(x.to(DEVICE)).square().mean()


def case_adapters_train_beside_them() -> None:
    plain = make(Adapted)
    weight = plain.base.weight
    weight.scale.div_(2**RANK)
    whole = (weight.codes * weight.scale).clone()
    optimizer = torch.optim.AdamW(plain.adapter.parameters(), lr=1e-2)
    expected = [torch_step(plain, optimizer, step, loss_at=loss_at) for step in range(3)]
    for stage in STAGES:
        model = make(Adapted)
        settings = {"optimizer": torch.optim.AdamW(model.adapter.parameters(), lr=1e-2)}
        engine = shard(model, stage=stage, clip=1.0, **settings)
        assert_close(train(engine, 3, loss_at=loss_at), expected)
        kept = model.base.weight
        assert isinstance(kept, Scaled)
        assert_same(kept.codes * kept.scale, whole)
        engine.destroy()
        assert isinstance(model.base.weight, Scaled)


def case_they_are_not_trained() -> None:
    model = make(Adapted)
    model.base.weight.requires_grad_()
    text = "parameter base.weight is Scaled, made of other tensors; expected fp32, bf16 or fp16"
    raises(zerorun.ConfigError, text, shard, model)
