"""Frozen weights in a dtype of their own (4 bits, fp8, wider integers): sharded bit by bit."""

from __future__ import annotations

from safetensors.torch import load_file, save_file
from zerorun import consolidate
from zerorun.interchange.model_files import model_tensors

from cases.models import *

WIDTH, BLOCK = 32, 64


class Packed(nn.Parameter):
    """As bitsandbytes' Params4bit: a class of its own, whose attributes say what its bytes mean."""

    def __new__(cls, data=None, quant_state=None, bnb_quantized=True, module=None):
        self = torch.Tensor._make_subclass(cls, torch.empty(0) if data is None else data, False)
        self.quant_state, self.bnb_quantized = quant_state, bnb_quantized
        self.module = module
        return self

    def __deepcopy__(self, memo):
        made = type(self)(self.data.clone(), copy.deepcopy(self.quant_state), self.bnb_quantized)
        made.module = self.module
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class QuantState:
    """What the bytes of one weight mean. A layer saves it as tensors, one of which is a text."""

    def __init__(self, absmax: torch.Tensor, offset: float, shape: tuple[int, ...]) -> None:
        self.absmax, self.offset, self.shape = absmax, offset, shape

    def as_dict(self) -> dict[str, torch.Tensor]:
        text = json.dumps({"offset": self.offset, "shape": self.shape})
        return {"absmax": self.absmax, "quant_state.packed": torch.tensor([*text.encode()]).byte()}

    @classmethod
    def from_dict(cls, parts: dict[str, torch.Tensor], device: torch.device) -> QuantState:
        rest = json.loads(bytes(parts["quant_state.packed"].tolist()))
        return cls(parts["absmax"].to(device), rest["offset"], tuple(rest["shape"]))


def unpacked(data: torch.Tensor, state: QuantState) -> torch.Tensor:
    flat = data.view(torch.uint8).flatten()
    codes = torch.stack([flat >> 4, flat & 15], 1).flatten().float() - state.offset
    return (codes.view(-1, BLOCK) * state.absmax[:, None]).view(state.shape)


class _Product(torch.autograd.Function):
    """Keeps the bytes outside of save_for_backward, as bitsandbytes does."""

    @staticmethod
    def forward(ctx, x, packed, state):
        ctx.packed, ctx.state = packed.view(-1, 1), state
        return x @ unpacked(packed, state).to(x.dtype).t()

    @staticmethod
    def backward(ctx, grad):
        return grad @ unpacked(ctx.packed, ctx.state).to(grad.dtype), None, None


class PackedLinear(nn.Module):
    def __init__(self, storage: torch.dtype = torch.uint8, width: int = WIDTH) -> None:
        super().__init__()
        # All bytes occur, so some pairs of them are NaN as bf16 or fp32.
        data = torch.randint(0, 256, (width * width // 2,), dtype=torch.uint8)
        offset = round(7.5 + torch.randn(()).item(), torch.randint(2, 9, ()).item())
        state = QuantState(torch.rand(width * width // BLOCK) / 50, offset, (width, width))
        self.weight = Packed(data.view(storage).view(-1, 1), state, module=self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Product.apply(x, self.weight, self.weight.quant_state)

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in self.weight.quant_state.as_dict().items():
            destination[f"{prefix}weight.{name}"] = value


class Block(nn.Module):
    def __init__(self, storage: torch.dtype) -> None:
        super().__init__()
        self.base = PackedLinear(storage)
        self.low, self.high = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.base(x)) + self.high(self.low(x))


class Adapted(nn.Module):
    def __init__(self, storage: torch.dtype = torch.uint8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(storage) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.float().square().mean()


def inputs(step: int) -> torch.Tensor:
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)


def settings(stage: int, share: bool, **keys: Any) -> dict[str, Any]:
    own = {"zerorun": {"comm_timeout": 30, "share_parameters": share}}
    return config(stage, gradient_clipping=0.0) | own | keys


def start(stage: int, share: bool = True, model: nn.Module | None = None, **keys: Any):
    model = make(Adapted) if model is None else model
    return initialize(model, sgd(model), config=settings(stage, share, **keys))[0]


def train(engine: Any, steps: int = 1, first: int = 0) -> None:
    dtype = next(p.dtype for p in engine.module.parameters() if p.requires_grad)
    for step in range(first, first + steps):
        engine.backward(engine(inputs(step).chunk(WORLD_SIZE)[RANK].to(dtype)))
        engine.step()


def bytes_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: p.detach().clone().view(torch.uint8).flatten()
        for name, p in model.named_parameters()
        if not p.requires_grad
    }


def full_bytes_of(engine: Any) -> dict[str, torch.Tensor]:
    with GatheredParameters(engine.module.parameters()):
        return bytes_of(engine.module)


def full_state(engine: Any) -> dict[str, torch.Tensor]:
    return dict(engine.full_state_dict(rank0_only=False))


def case_each_rank_keeps_its_part_of_the_bytes() -> None:
    for share in (True, False):
        model = make(Adapted)
        weight = model.blocks[0].base.weight
        numel = weight.numel()
        with logged() as messages:
            engine = start(3, share, model)
        assert not any("on every rank" in message for message in messages)
        assert (weight.shape, weight.ds_shape) == ((0,), (numel, 1))
        assert weight.partition_numel() <= max(256, numel // WORLD_SIZE)
        # Three blocks of bytes and of an adapter in fp32, in shards of 256 elements.
        padding = 3 * 256 * (1 + 4)
        most = (3 * (numel + 4 * 8 * WIDTH)) / WORLD_SIZE + padding
        assert engine._core.memory_use()["parameters"] <= most


def case_bytes_in_floats_keep_their_bits() -> None:
    """bitsandbytes' quant_storage: bytes in a tensor of floats, in a model of the same or another
    dtype."""
    for storage in (torch.bfloat16, torch.float32, torch.float16, torch.int8):
        for stage in STAGES:
            model = make(lambda storage=storage: Adapted(storage))
            before = bytes_of(model)
            engine = start(stage, False, model, **BF16)
            assert model.blocks[0].low.weight.dtype == torch.bfloat16
            assert model.blocks[0].base.weight.dtype == storage
            train(engine)
            assert_same(full_bytes_of(engine), before)


class Frozen(nn.Module):
    DTYPES = (
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float64,
        torch.bfloat16,
        torch.bool,
    )

    def __init__(self) -> None:
        super().__init__()
        for index, dtype in enumerate(self.DTYPES):
            values = (torch.arange(3 * 700) % (2 if dtype is torch.bool else 97)).view(3, 700)
            self.register_parameter(f"p{index}", nn.Parameter(values.to(dtype), False))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self) -> torch.Tensor:
        frozen = [p for p in self.parameters() if not p.requires_grad]
        return self.scale * sum(p.to(torch.float32).mean() for p in frozen)


def case_every_dtype(folder: Path) -> None:
    for stage in STAGES:
        for share in (True, False):
            model = make(Frozen)
            before, expected = bytes_of(model), model().item()
            engine = start(stage, share, model)
            assert abs(engine().item() - expected) < 1e-4 * expected
            engine.save_checkpoint(folder, "saved")
            with GatheredParameters(engine.module.parameters(), modifier_rank=0), torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            assert not any(value.any() for value in full_bytes_of(engine).values())
            engine.load_checkpoint(folder, "saved")
            assert_same(full_bytes_of(engine), before)


class Renamed(Frozen):
    DTYPES = (torch.float8_e5m2, torch.float8_e4m3fn, *Frozen.DTYPES[2:])


def case_exports_have_them_in_their_dtypes(folder: Path) -> None:
    model = make(Frozen)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    engine = start(3, False, model)
    engine.save_checkpoint(folder, "saved")
    for dtype in (torch.float32, torch.float16):
        tensors = model_tensors(consolidate.open_model(folder, "saved"), dtype)
        for name, value in expected.items():
            own = dtype if value.dtype in (torch.float32, torch.bfloat16) else value.dtype
            assert tensors[name].dtype == own
            found = tensors[name].contiguous()
            assert found.shape == value.shape
            assert torch.equal(found.float(), value.float()), name
    engine = start(3, False, make(Renamed))
    before = full_bytes_of(engine)
    message = "p0 is torch.float8_e4m3fn, in this model torch.float8_e5m2"
    raises(zerorun.CheckpointError, message, engine.load_checkpoint, folder, "saved")
    assert_same(full_bytes_of(engine), before)


def case_checkpoints_have_them_once_and_load_at_other_stages(folder: Path) -> None:
    engine = start(3, False)
    before = full_bytes_of(engine)
    train(engine, 2)
    engine.save_checkpoint(folder, "saved")
    train(engine, 1, first=2)
    expected = full_state(engine)
    saved = zerorun._C.SavedModel(str(folder), "saved")
    packed = [p for p in saved.parameters if p.name.endswith("base.weight")]
    assert [(p.dtype, p.shape) for p in packed] == [("uint8", [WIDTH * WIDTH // 2, 1])] * 3
    numel = 0
    for path in (folder / "saved").glob("*.safetensors"):
        values = load_file(path).items()
        numel += sum(value.numel() for key, value in values if ".base.weight.param" in key)
    assert numel == 3 * WIDTH * WIDTH // 2
    for stage in STAGES:
        model = make(Adapted, seed=1)
        engine = start(stage, True, model)
        engine.load_checkpoint(folder, "saved")
        assert_same(full_bytes_of(engine), before)
        train(engine, 1, first=2)
        torch.testing.assert_close(full_state(engine), expected, rtol=1e-6, atol=1e-7)
    engine.save_checkpoint(folder, "trained", exclude_frozen_parameters=True)
    saved = zerorun._C.SavedModel(str(folder), "trained")
    trained = {f"blocks.{i}.{name}.weight" for i in range(3) for name in ("low", "high")}
    assert {p.name for p in saved.parameters if p.saved} == trained


def case_leave_the_engine(folder: Path) -> None:
    model = make(Adapted)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    engine = start(3, False, model)
    name = "blocks.1.base.weight"
    copied = copy.deepcopy(model.blocks[1].base.weight)
    assert type(copied) is type(model.blocks[1].base.weight) is Packed
    assert copied.quant_state is not model.blocks[1].base.weight.quant_state
    assert torch.equal(copied.data, expected[name])
    assert not hasattr(copied, "ds_shape")
    assert torch.equal(dict(engine.iter_full_parameters())[name], expected[name])
    engine.save_16bit_model(folder, "model.bin")
    engine.save_checkpoint(folder, "saved")
    if RANK == 0:
        found = torch.load(folder / "model.bin", weights_only=True)
        assert torch.equal(found[name], expected[name])
        found = consolidate.fp32_state_dict(folder, "saved")
        assert torch.equal(found[name], expected[name])
    engine.communicator.barrier("read")


def case_zero_init_partitions_them() -> None:
    expected = bytes_of(make(Adapted))
    with Init(config_dict_or_path=BF16):
        model = make(Adapted)
    weight = model.blocks[0].base.weight
    assert weight.shape == (0,)
    assert weight.ds_tensor.numel() == -(-weight.ds_numel // WORLD_SIZE)
    with GatheredParameters(model.parameters()):
        assert_same(bytes_of(model), expected)
    engine = start(3, False, model, **BF16)
    train(engine)
    assert_same(full_bytes_of(engine), expected)
    with Init():  # not quantized yet: its layer will do so when it is moved
        raw = make(lambda: nn.ParameterDict({"w": Packed(torch.ones(4), bnb_quantized=False)}))
    assert raw["w"].shape == (4,)


class _With8Bits(nn.Module):
    """As bitsandbytes' Linear8bitLt, which puts its own copy back at every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randint(-9, 9, (4, 4), dtype=torch.int8), False)
        self.weight.CB, self.weight.SCB = self.weight.data, torch.ones(4)
        self.adapter = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data = self.weight.CB
        return self.adapter(x @ self.weight.to(x.dtype)).square().mean()


def case_weights_of_which_a_layer_has_a_copy_stay_whole() -> None:
    for stage in STAGES:
        model = make(_With8Bits)
        with logged() as messages:
            engine = start(stage, True, model)
        told = [m for m in messages if "hold a copy" in m and "weight" in m]
        assert len(told) == (stage == 3 and RANK == 0)
        for _ in range(17):  # as many steps as the engine needs to look at all parameters
            engine.backward(engine(torch.ones(2, 4)))
            engine.step()
        assert model.weight.shape == (4, 4)


def case_other_programs_files_are_read_as_bytes(folder: Path) -> None:
    expected = bytes_of(make(Adapted))
    if RANK == 0:
        save_file(dict(make(Adapted).state_dict()), folder / "model.safetensors")
        (folder / "config.json").write_text("{}")
    zerorun.communicator.world().barrier("written")
    for stage in STAGES:
        engine = start(stage, False, make(Adapted, seed=1))
        engine.load_checkpoint(folder, load_optimizer_states=False)
        assert_same(full_bytes_of(engine), expected)
