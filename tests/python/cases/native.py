"""zerorun.shard: keywords instead of a configuration, units, and models on the meta device."""

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from zerorun.model.units import find_units

from cases.models import *

AdamW = functools.partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)


def case_keywords_train_as_torch_does(folder: Path) -> None:
    expected, _ = reference(steps=4)
    unclipped, _ = reference(clip=float("inf"), steps=4)
    for stage in range(4):
        model = make()
        engine = shard(model, stage=stage, optimizer=adamw(model), clip=1.0)
        assert_close(train(engine, 4), expected)
    for place in ("cpu", folder):
        engine = shard(make(), stage=2, optimizer=AdamW, clip=1.0, offload_optimizer=place)
        assert_close(train(engine, 4), expected)
    engine = shard(make(), optimizer=AdamW)
    assert (engine.stage, engine.grad_norm) == (engine.zero_optimization_stage(), None) == (3, None)
    assert_close(train(engine, 4), unclipped)
    assert engine.grad_norm == engine.get_global_grad_norm() > 0


def case_16_bit_keeps_masters_and_casts_inputs() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        model = make(lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
        values = model[0].weight.detach().clone()
        engine = shard(model, dtype=dtype, reduce_dtype=torch.float32, optimizer=AdamW)
        assert torch.equal(safe_get_full_fp32_param(model[0].weight).cpu(), values)
        out = engine(torch.ones(2, 8, device=DEVICE))
        assert out.dtype == dtype
        engine.backward(out.float().mean())
        engine.step()
        engine.destroy()
        refuses("forward: this engine was destroyed", engine, out)


class Net(nn.Module):
    class Shelf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.board0, self.board1 = Block(32), Block(32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.board1(self.board0(x))

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.first, self.second = Block(32), Block(32)
        self.tower = nn.Sequential(Block(32), nn.GELU(), Block(32))
        self.shelf = Net.Shelf()
        self.mlp = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 50))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.shelf(self.tower(self.second(self.first(self.embedding(tokens)))))
        return self.mlp(hidden)


BLOCKS = ["first", "second", "shelf.board0", "shelf.board1", "tower.0", "tower.2"]


def case_units_are_found_in_any_container() -> None:
    def names(model: nn.Module, policy=None) -> list[str]:
        return sorted(unit.name for unit in find_units(model, policy) if unit.name)

    model = make(Net)
    assert names(model) == BLOCKS
    for policy in (Block, "Block", [Block], lambda _path, module: isinstance(module, Block)):
        assert names(model, policy) == BLOCKS
    assert names(model, ["first", "tower.*", "shelf"]) == ["first", "shelf", "tower.0", "tower.2"]
    assert names(model, ["shelf", "shelf.board1"]) == ["shelf", "shelf.board1"]
    for policy in (None, Block, "tower.*", [Block, nn.Embedding]):
        units = find_units(model, policy)
        held = [p for unit in units for p in unit.parameters]
        assert len(held) == len(set(held))
        assert set(held) == set(model.parameters())
    wrapped = checkpoint_wrapper(model)  # all of it, and some of what is in it
    model.first, model.tower[0] = map(checkpoint_wrapper, (model.first, model.tower[0]))
    prefix = "_checkpoint_wrapped_module."
    for policy in (["first", "tower.*"], [f"{prefix}first", f"{prefix}tower.*"]):
        assert names(wrapped, policy) == [
            f"{prefix}{name}" for name in ("first", "tower.0", "tower.2")
        ]
    # Elements of lists stay whole, whatever repeats inside of them.
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 2, 32), 2)
    assert names(decoder) == ["layers.0", "layers.1"]


def case_every_policy_gives_the_same_losses() -> None:
    expected, _ = reference(kind=Net, steps=3)
    for policy in (None, Block, ["tower", "shelf", "first"], "mlp.*"):
        engine = shard(make(Net), units=policy, optimizer=AdamW, clip=1.0)
        assert_close(train(engine, 3), expected)


def on_meta(kind: type[nn.Module] = Model) -> nn.Module:
    with torch.device("meta"):
        return kind()


def case_weights_reach_a_model_on_the_meta_device() -> None:
    expected, _ = reference(steps=4)
    for stage in range(4):
        model = on_meta()
        model.blocks[1] = checkpoint_wrapper(model.blocks[1])  # a state dict does not name it
        model.blocks[0].up.weight.mark = "kept"
        before = dict(model.named_parameters())
        optimizer = adamw(model)
        weights = make().state_dict() if RANK == 0 else {}
        engine = shard(model, stage=stage, optimizer=optimizer, clip=1.0, weights=weights)
        assert dict(model.named_parameters()) == before
        assert model.blocks[0].up.weight.mark == "kept"
        assert_close(train(engine, 4), expected)


def decays_matrices(groups: list[dict[str, Any]], kind: Any = torch.optim.AdamW) -> Any:
    """Weight decay by the number of dimensions, as programs of transformers have it."""
    matrices, vectors = [], []
    for parameter in groups[0]["params"]:
        (matrices if parameter.ndim > 1 else vectors).append(parameter)
    decayed = {"params": matrices, "weight_decay": 0.5}
    return kind([decayed, {"params": vectors, "weight_decay": 0.0}], lr=0.1)


def case_a_function_groups_parameters_of_the_meta_device_by_shape() -> None:
    for stage in range(4):
        for kind, after in ((torch.optim.AdamW, 0.95), (torch.optim.Adagrad, 0.9)):
            model = on_meta(lambda: nn.Linear(4, 4))
            optimizer = functools.partial(decays_matrices, kind=kind)
            weights = {"weight": torch.ones(4, 4), "bias": torch.ones(4)}
            engine = shard(model, stage=stage, optimizer=optimizer, weights=weights)
            engine.backward(engine(torch.ones(1, 4, device=DEVICE)).sum() * 0)
            engine.step()
            with GatheredParameters(list(model.parameters())):
                weight, bias = model.weight[0, 0].item(), model.bias[0].item()
            assert (abs(weight - after) < 1e-5, bias) == (True, 1.0), (stage, kind, weight)


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(6, 4).t())


def case_values_of_any_layout_are_rank_zeros() -> None:
    model = on_meta(Transposed)
    shard(model, init=lambda module: module.weight.fill_(RANK + 1.0))
    assert torch.equal(full(model.weight), torch.ones(4, 6))


class Tabled(Model):
    """With tables that it assigns: one is saved, and one complex, as Llama's reference code has."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, VOCABULARY)  # with a bias, which needs a value, too
        self.head.weight = self.embedding.weight
        self.register_buffer("table", torch.empty(32), persistent=False)
        self.register_buffer("saved", torch.empty(3, dtype=torch.long))
        self.register_buffer("freqs_cis", torch.empty(16, dtype=torch.cfloat), persistent=False)
        self.register_buffer("flags", torch.empty(2, dtype=torch.uint8), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.table, self.saved = 1 + torch.arange(32.0), torch.arange(3)
        self.freqs_cis = torch.polar(torch.ones(16), torch.arange(16.0))
        self.flags.zero_()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens) * self.table.mean()


def case_a_model_on_the_meta_device_is_initialised_by_module() -> None:
    full: list[int] = []
    for stage in (3, 1):
        model = on_meta(Tabled)

        def watched(module: nn.Module) -> None:
            module.reset_parameters()
            full.append(sum(p.numel() for p in model.parameters() if not p.is_meta))

        torch.manual_seed(RANK)
        engine = shard(model, stage=stage, optimizer=AdamW, init=watched)
        if stage == 3:  # never more than one module, and what others are tied to
            assert max(full) <= 50 * 32 + 32 * 128 + 128
        weight = safe_get_full_fp32_param(model.embedding.weight)
        assert 0.8 < weight.std() < 1.2
        assert model.head.weight is model.embedding.weight
        assert model.saved.tolist() == [0, 1, 2]
        losses = train(engine, 8)
        assert losses[-1] < losses[0]


def case_buffers_may_be_assigned() -> None:
    expected = make(Tabled)
    loss = loss_of(expected, batch_of(0)).item()
    for stage in (3, 1):
        model = on_meta(Tabled)
        table, parameters = model.table, list(model.parameters())
        weights = expected.state_dict() | {"saved": torch.arange(3) + 7}
        shard(model, stage=stage, weights=weights if RANK == 0 else {})
        assert model.table is table
        assert torch.equal(model.table.cpu(), expected.table)
        assert torch.equal(model.freqs_cis.cpu(), expected.freqs_cis)
        assert model.saved.tolist() == [7, 8, 9]
        assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
        assert_close([loss_of(model, batch_of(0)).item()], [loss])


def case_what_has_no_value_is_named() -> None:
    text = "reset_parameters(), which it does not have, gave no value to 1 (weight)"
    raises(ValueError, text, shard, nn.ModuleDict({"scale": on_meta(Transposed)}))
    linear = on_meta(lambda: nn.Linear(3, 3))
    text = "init() gave no value to 1 (weight)"
    raises(ValueError, text, shard, linear, init=lambda module: module.bias.zero_())
    state = make().state_dict()
    state["nothing.here"] = state.pop("blocks.0.up.weight")
    text = "1 (blocks.0.up.weight) of the model's names are missing, and 1 (nothing.here) are not"
    raises(ValueError, text, shard, on_meta(), weights=state)
    state["blocks.0.up.weight"] = state.pop("nothing.here")[:3]
    text = "weights: blocks.0.up.weight has shape (3, 32), expected the model's"
    raises(ValueError, text, shard, on_meta(), weights=state)
    raises(ValueError, "give zerorun.shard its", initialize, on_meta(), config=config(3))
