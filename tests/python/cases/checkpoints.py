"""Saving and loading engines."""

from __future__ import annotations

from pathlib import Path

import torch
import zerorun
from torch import nn

from cases.models import (
    WORLD_SIZE,
    Model,
    adamw,
    assert_close,
    config,
    make,
    raises,
    reference,
    train,
)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def engine_at(stage: int, make_optimizer=adamw, seed: int = 0, kind: type[nn.Module] = Model):
    model = make(kind, seed)
    optimizer = make_optimizer(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
    return zerorun.initialize(model, optimizer, lr_scheduler=scheduler, config=config(stage))[0]


def case_any_stage_continues_what_any_other_saved(folder: Path) -> None:
    for make_optimizer in (adamw, sgd):
        plain = make()
        optimizer = make_optimizer(plain)
        whole = engine_at(2, make_optimizer)
        expected = train(whole, 10)
        whole.destroy()
        for saved_at in range(4):
            path = folder / f"{make_optimizer.__name__}{saved_at}"
            engine = engine_at(saved_at, make_optimizer)
            losses = train(engine, 5)
            assert engine.save_checkpoint(path, client_state={"epoch": 3, "object": Path("x")})
            engine.destroy()
            assert (path / "latest").read_text().strip() == "global_step5"
            loads_at = (saved_at + 1) % 4
            engine = engine_at(loads_at, make_optimizer, seed=5)
            found, state = engine.load_checkpoint(path)
            assert found == str(path / "global_step5")
            assert state == {"epoch": 3, "object": Path("x")}
            assert engine.global_steps == 5
            assert_close(losses + train(engine, 5, first=5), expected, 1e-6)
            engine.destroy()
        del optimizer


def case_tags_and_latest(folder: Path) -> None:
    engine = engine_at(3)
    assert_no_checkpoint(engine, folder)
    train(engine, 1)
    engine.save_checkpoint(folder, tag="epoch_1.pth", exclude_frozen_parameters=None)
    train(engine, 1)
    engine.save_checkpoint(folder, "pytorch_model", save_latest=False)
    assert (folder / "latest").read_text().strip() == "epoch_1.pth"
    engine.load_checkpoint(folder)
    assert engine.global_steps == 1
    # On a live engine, also at stage 3.
    engine.load_checkpoint(folder, "pytorch_model")
    assert engine.global_steps == 2
    engine.load_checkpoint(folder, "epoch_1.pth", load_optimizer_states=False)
    moments = zerorun.zero.safe_get_full_optimizer_state(engine.module.embedding.weight, "exp_avg")
    assert not moments.any()
    engine.destroy()


def assert_no_checkpoint(engine: zerorun.ZeroEngine, folder: Path) -> None:
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert engine.load_checkpoint(folder / "nothing") == (None, None)
    assert "no checkpoint was loaded" in str(caught[0].message)


class Wider(Model):
    def __init__(self) -> None:
        super().__init__(width=48)


def case_another_models_checkpoint_is_refused(folder: Path) -> None:
    engine = engine_at(3)
    train(engine, 1)
    engine.save_checkpoint(folder)
    engine.destroy()
    other = engine_at(3, kind=Wider)
    before = other.core.parameter_hash()
    raises(zerorun.CheckpointError, "embedding.weight", lambda: other.load_checkpoint(folder))
    assert other.core.parameter_hash() == before
    other.destroy()


def case_the_whole_model_on_rank_zero(folder: Path) -> None:
    _, trained = reference(steps=3)
    for stage in range(4):
        engine = engine_at(stage)
        train(engine, 3)
        name = f"model{stage}.bin"
        engine.save_16bit_model(folder, name)
        state = torch.load(folder / name, weights_only=True)
        assert state["head.weight"].data_ptr() == state["embedding.weight"].data_ptr()
        for key, value in trained.state_dict().items():
            torch.testing.assert_close(state[key], value, rtol=1e-4, atol=2e-4)
        engine.destroy()


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embedding(tokens).transpose(1, 2)).transpose(1, 2))


def case_buffers_are_saved(folder: Path) -> None:
    engine = engine_at(2, kind=Normalised)
    train(engine, 3)
    mean = engine.module.norm.running_mean.clone()
    engine.save_checkpoint(folder)
    engine.module.norm.reset_running_stats()
    engine.load_checkpoint(folder)
    # Every rank loads rank 0's.
    values = mean.clone()
    engine.communicator.broadcast(values)
    assert torch.equal(engine.module.norm.running_mean, values)
    assert WORLD_SIZE > 1 or torch.equal(values, mean)
    engine.destroy()


class Adapted(Model):
    """Most of it frozen, as with an adapter."""

    def __init__(self) -> None:
        super().__init__()
        for name, parameter in self.named_parameters():
            parameter.requires_grad = name.startswith("blocks.0")


def case_frozen_parameters_may_be_left_out(folder: Path) -> None:
    for stage in (1, 3):
        path = folder / str(stage)
        engine = engine_at(stage, kind=Adapted)
        losses = train(engine, 3)
        engine.save_checkpoint(path, "whole")
        engine.save_checkpoint(path, "adapter", exclude_frozen_parameters=True)
        expected = losses + train(engine, 2, first=3)
        engine.destroy()
        sizes = {
            tag: sum(file.stat().st_size for file in (path / tag).iterdir())
            for tag in ("whole", "adapter")
        }
        assert sizes["adapter"] < 0.8 * sizes["whole"], sizes
        engine = engine_at(stage, kind=Adapted)  # which makes the frozen ones as before
        train(engine, 1, first=7)
        engine.load_checkpoint(path, "adapter")
        assert_close(losses + train(engine, 2, first=3), expected, 1e-6)
        engine.destroy()


def case_the_model_in_fp32_without_an_engine(folder: Path) -> None:
    from zerorun.consolidate import fp32_state_dict, main

    _, trained = reference(steps=3)
    for stage in (0, 3):
        engine = engine_at(stage)
        train(engine, 3)
        engine.save_checkpoint(folder / str(stage))
        state = fp32_state_dict(folder / str(stage))
        assert set(state) == set(trained.state_dict())
        assert state["head.weight"] is state["embedding.weight"]
        for key, value in trained.state_dict().items():
            torch.testing.assert_close(state[key], value, rtol=1e-4, atol=2e-4)
        engine.destroy()
    output = folder / f"model{zerorun._C.rank_from_environment().rank}"
    arguments = [str(folder / "3"), str(output), "--safe_serialization", "--max_shard_size", "20KB"]
    assert main(arguments) == 0
    files = sorted(path.name for path in output.iterdir())
    assert "model.safetensors.index.json" in files
    assert len(files) > 2
    assert main([str(folder / "nothing"), str(output)]) == 1
