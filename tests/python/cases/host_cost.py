"""What stage 3 costs the host, counted, and modules that are called without their unit."""

import sys

from cases.models import *
from cases.random_modules import WIDTH, Summing

sys.path.append(str(ROOT / "bench"))
from host_cost import LAYERS, count_calls, make_model, train_step


def hooked(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if module._forward_pre_hooks}


def case_python_calls_of_a_micro_step() -> None:
    model = make_model()
    engine, *_ = initialize(model, adamw(model), config=config(3))
    for most, recomputed in ((750, False), (1500, True)):
        if recomputed:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the function's age
                model.gradient_checkpointing_enable({"use_reentrant": False})
        step = train_step(engine)
        step()
        found = count_calls(step)
        assert 0 < found["zerorun"] <= most, found
        assert found["dynamo"] == 0, found
    assert LAYERS < len(hooked(model)) <= LAYERS + 8


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True) for _ in range(6)
        )
        self.head = nn.Linear(32, 50)
        self.most = 0  # layers that were full at once

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer.norm1(x + layer.self_attn(x, x, x)[0])
            x = layer.norm2(x + layer.linear2(torch.relu(layer.linear1(x))))
            self.most = max(self.most, full_layers(self))
        return self.head(x)


def full_layers(model: nn.Module) -> int:
    weights = [layer.linear1._parameters.get("weight") for layer in model.layers]
    return sum(weight.numel() > 0 for weight in weights)


def case_calls_of_parts_fill_one_block_at_a_time() -> None:
    expected, _ = reference(kind=Parts, steps=3)
    for evaluate_first in (False, True):
        model, engine = started(bare_config(), Parts)
        if evaluate_first:
            with torch.no_grad():
                for layer in model.layers:
                    layer.linear1(torch.ones(1, 32, device=DEVICE))
                    assert full_layers(model) == 0
        losses = []
        for step in range(3):
            losses += train(engine, 1, first=step)
            assert model.most <= 1, (step, model.most)  # 1: the first step's first block
        assert_close(losses, expected)


class Tied(nn.Linear):
    """With a parameter of another unit."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) @ self.tied.t()


def two_units() -> nn.Module:
    model = Model()
    for block in model.blocks:
        block.inner = Tied(32, 32)
        block.inner.tied = model.embedding.weight
    return model


def case_a_part_with_parameters_of_two_units() -> None:
    plain = make(two_units).to(DEVICE)
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    for has_graph in (False, True):
        model, engine = started(bare_config(), two_units)
        for block in (0,) if has_graph else (0, 1):
            with torch.set_grad_enabled(has_graph):
                found, expected = (each.blocks[block].inner(x) for each in (model, plain))
            torch.testing.assert_close(found, expected)
        if has_graph:
            engine.backward(found.sum())
            engine.step()
        assert all(parameter.numel() == 0 for parameter in model.parameters())


def case_a_part_within_gathered_parameters_has_its_backward_outside() -> None:
    x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0)).to(DEVICE)

    def loss_of_attention(model: nn.Module) -> torch.Tensor:
        return model.layers[1].self_attn(x, x, x)[0].square().mean()

    plain = make(Parts).to(DEVICE)
    loss_of_attention(plain).backward()
    expected = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    model, engine = started(bare_config(), Parts)
    for _ in range(2):  # without hooks, and with them
        with GatheredParameters(model.parameters()):
            loss = loss_of_attention(model)
        engine.backward(loss)
        for name, parameter in model.named_parameters():
            if name in expected:
                found = safe_get_full_grad(parameter)
                torch.testing.assert_close(found.to(DEVICE), expected[name])
        engine.drop_batch()


def case_a_generator_inside_of_a_unit_called_on_its_own() -> None:
    def kind() -> nn.Module:
        return nn.Sequential(Summing(), Summing())

    plain = make(kind).to(DEVICE)
    model, engine = started(bare_config(), kind)
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    torch.testing.assert_close(engine(x), plain(x))
    found, expected = (sum(each[0].parts(x)) for each in (model, plain))
    torch.testing.assert_close(found, expected)
    engine.backward(found.sum())
    engine.step()
    assert all(parameter.numel() == 0 for parameter in model.parameters())


def case_an_inner_module_called_by_the_program() -> None:
    def inner_loss(model: nn.Module, around: Callable[[], object]) -> torch.Tensor:
        block = model.blocks[1]
        x = torch.arange(64.0, device=next(block.parameters()).device).view(2, 32) / 64
        with torch.no_grad():
            block.up(x)
        with around():
            out = block.down(torch.relu(block.up(x)))
        return out.square().mean()  # whose backward is outside

    expected, _ = reference(steps=3, loss_at=lambda m, _: inner_loss(m, torch.enable_grad))
    for gathered in (False, True):
        model, engine = started(config(3))
        assert model.blocks[1].up.weight.numel() == 0  # to look at it gathers nothing

        def around() -> object:
            return GatheredParameters(model.parameters() if gathered else [])

        losses = train(engine, 3, loss_at=lambda *_: inner_loss(model, around))
        assert_close(losses, expected)
        assert all(parameter.numel() == 0 for parameter in model.parameters())
        assert "blocks.1.up" in hooked(model)


def case_a_part_without_hooks_reads_anothers_parameter() -> None:
    expected, _ = reference(kind=Inside, steps=3)
    model, engine = started(config(3), Inside)
    assert "part" not in hooked(model)
    losses = train(engine, 3, loss_at=lambda _, step: own_loss(model.part, step))
    assert "part" in hooked(model)
    assert_close(losses, expected)


def case_reads_within_a_unit_are_those_of_a_dictionary() -> None:
    def is_plain(module: nn.Module) -> bool:
        return type(module._parameters).__getitem__ is dict.__getitem__

    seen = []
    model, engine = started(config(3))
    block = model.blocks[0]
    block.norm.register_forward_pre_hook(lambda *_: seen.append(is_plain(block.up)))
    train(engine, 1)
    assert seen == [True]
    assert not is_plain(block.up)
    engine.destroy()
    assert type(block.up._parameters) is dict
