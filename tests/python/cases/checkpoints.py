"""Saving and loading engines."""

import subprocess

from ranks import ZERORUN

from cases.models import *


def engine_at(stage: int, make_optimizer=adamw, seed: int = 0, kind: Any = Model, **keys: object):
    model = make(kind, seed)
    optimizer = make_optimizer(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
    settings = config(stage, **keys)
    return initialize(model, optimizer, lr_scheduler=scheduler, config=settings)[0]


def momentum_of(engine: zerorun.ZeroEngine) -> torch.Tensor:
    weight = engine.module.blocks[0].up.weight
    return safe_get_full_optimizer_state(weight, "momentum_buffer")


def case_any_stage_continues_what_any_other_saved(folder: Path) -> None:
    for make_optimizer in (adamw, sgd):
        expected = train(engine_at(2, make_optimizer), 10)
        for saved_at in range(4):
            path = folder / f"{make_optimizer.__name__}{saved_at}"
            engine = engine_at(saved_at, make_optimizer)
            losses = train(engine, 5)
            assert engine.save_checkpoint(path, client_state={"epoch": 3, "object": Path("x")})
            engine.destroy()
            assert (path / "latest").read_text().strip() == "global_step5"
            engine = engine_at((saved_at + 1) % 4, make_optimizer, seed=5)
            state = {"epoch": 3, "object": Path("x")}
            assert engine.load_checkpoint(path) == (str(path / "global_step5"), state)
            assert engine.global_steps == 5
            assert_close(losses + train(engine, 5, first=5), expected, 1e-6)


def case_tags_and_latest(folder: Path) -> None:
    engine = engine_at(3)
    with logged() as lines:
        assert engine.load_checkpoint(folder / "nothing") == (None, None)
    assert "no checkpoint was loaded" in lines[0]
    train(engine, 1)
    engine.save_checkpoint(folder, tag="epoch_1.pth", exclude_frozen_parameters=None)
    if WORLD_SIZE > 1:  # a disk of one host, say
        seen = folder if RANK == 0 else folder / "nothing"
        raises(zerorun.CheckpointError, str(folder / "nothing"), engine.load_checkpoint, seen)
    train(engine, 1)
    engine.save_checkpoint(folder, "pytorch_model", save_latest=False)
    assert (folder / "latest").read_text().strip() == "epoch_1.pth"
    engine.load_checkpoint(folder)
    assert engine.global_steps == 1
    # On a live engine, also at stage 3.
    engine.load_checkpoint(folder, "pytorch_model")
    assert engine.global_steps == 2
    engine.load_checkpoint(folder, "epoch_1.pth", load_optimizer_states=False)
    moments = safe_get_full_optimizer_state(engine.module.embedding.weight, "exp_avg")
    assert not moments.any()


def case_another_models_checkpoint_is_refused(folder: Path) -> None:
    engine = engine_at(3)
    engine.save_checkpoint(folder)
    refuses_to_load(engine_at(3, kind=lambda: Model(width=48)), folder, "embedding.weight")


def case_a_load_that_is_not_strict_takes_what_both_have(folder: Path) -> None:
    for make_optimizer in (adamw, sgd):
        path = folder / make_optimizer.__name__
        engine = engine_at(1, make_optimizer)
        train(engine, 2)
        engine.save_checkpoint(path)
        saved = engine.module.blocks[1].up.weight.detach().clone()
        other = engine_at(2, make_optimizer, seed=1, kind=lambda: Model(depth=4))
        extra = other.module.blocks[3].up.weight.detach().clone()
        refuses_to_load(other, path, "blocks.3")
        other.load_checkpoint(path, load_module_strict=False)
        assert torch.equal(other.module.blocks[1].up.weight, saved)
        assert torch.equal(other.module.blocks[3].up.weight, extra)
        train(other, 1)
        assert other.global_steps == 3


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
    engine.communicator.broadcast(mean)  # every rank loads rank 0's
    assert torch.equal(engine.module.norm.running_mean, mean)


def case_frozen_parameters_may_be_left_out(folder: Path) -> None:
    def adapted() -> nn.Module:
        model = Model().requires_grad_(False)
        model.blocks[0].requires_grad_(True)
        return model

    for stage in (1, 3):
        path = folder / str(stage)
        engine = engine_at(stage, kind=adapted)
        losses = train(engine, 3)
        engine.save_checkpoint(path, "whole")
        engine.save_checkpoint(path, "adapter", exclude_frozen_parameters=True)
        expected = losses + train(engine, 2, first=3)
        files = [(path / tag).iterdir() for tag in ("whole", "adapter")]
        whole, adapter = (sum(file.stat().st_size for file in each) for each in files)
        assert adapter < 0.8 * whole
        engine = engine_at(stage, kind=adapted)  # which makes the frozen ones as before
        train(engine, 1, first=7)
        engine.load_checkpoint(path, "adapter")
        assert_close(losses + train(engine, 2, first=3), expected, 1e-6)


def case_tags_that_begin_alike_keep_their_states(folder: Path) -> None:
    engine = engine_at(2, sgd)
    train(engine, 1)
    engine.save_checkpoint(folder, "best.v2")
    expected = momentum_of(engine)
    train(engine, 1)
    engine.save_checkpoint(folder, "best")
    engine.save_checkpoint(folder, "best")
    assert len(list(folder.glob("optimizer_shards.*"))) == 2
    engine.load_checkpoint(folder, "best.v2")
    assert torch.equal(momentum_of(engine), expected)


def case_what_a_killed_save_left_goes_a_day_later(folder: Path) -> None:
    engine = engine_at(2, sgd)
    train(engine, 1)
    engine.save_checkpoint(folder, "kept")
    (kept,) = folder.glob("optimizer_shards.*")
    assert sorted(path.name for path in kept.iterdir()) == [
        f"rank{i}.pt" for i in range(WORLD_SIZE)
    ]
    engine.communicator.barrier()
    days_of = {
        kept.name: 9.0,
        "optimizer_shards.young.0123456789abcdef": 0.9,
        "optimizer_shards.old.fedcba9876543210": 1.1,
    }
    if RANK == 0:
        for name, days in days_of.items():
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "unfinished").touch()
            seconds = time.time() - days * 24 * 3600
            os.utime(folder / name / "unfinished", (seconds, seconds))
        (folder / "kept").rename(folder / "best")
    engine.communicator.barrier()
    engine.save_checkpoint(folder, "next")
    names = sorted(path.name.rsplit(".", 1)[0] for path in folder.glob("optimizer_shards.*"))
    assert names == ["optimizer_shards.kept", "optimizer_shards.next", "optimizer_shards.young"]


def verified(folder: Path) -> str:
    """What `zerorun ckpt verify` finds, on every rank."""
    job = subprocess.run([ZERORUN, "ckpt", "verify", folder], capture_output=True, check=False)
    return "" if job.returncode == 0 else job.stderr.decode()


def case_damaged_optimizer_states_change_nothing(folder: Path) -> None:
    engine = engine_at(3, sgd)
    train(engine, 1)
    for how, damage in (
        ("flipped", flip),
        ("short", lambda path: path.write_bytes(path.read_bytes()[:-100])),
        ("missing", Path.unlink),
    ):
        path = folder / how
        engine.save_checkpoint(path)
        train(engine, 1)
        momentum = momentum_of(engine)
        (shards,) = path.glob("optimizer_shards.*")
        assert len(list(shards.iterdir())) == WORLD_SIZE
        file = shards / f"rank{WORLD_SIZE - 1}.pt"
        assert verified(path) == ""
        engine.communicator.barrier()  # all have counted
        if RANK == 0:
            damage(file)
        engine.communicator.barrier()
        assert how == "flipped" or str(file) in verified(path)  # it looks at sizes
        refuses_to_load(engine, path, str(file))
        assert torch.equal(momentum_of(engine), momentum)
        engine.load_checkpoint(path, load_optimizer_states=False)


def case_another_optimizers_states_are_refused(folder: Path) -> None:
    engine = engine_at(1, sgd)
    train(engine, 1)
    engine.save_checkpoint(folder)
    for make_optimizer, name in ((rmsprop, "RMSprop of PyTorch"), (adamw, "zerorun's Adam")):
        engine = engine_at(1, make_optimizer, seed=3)
        refuses_to_load(engine, folder, "states of SGD of PyTorch", f"optimizer is {name}")


def case_one_element_with_its_own_state(folder: Path) -> None:
    """A step count is not the state of an element, however few elements there are."""

    def scaled() -> nn.Module:
        model = Scaled()
        model.scale = nn.Parameter(torch.ones(1))
        return model

    engine = engine_at(2, lambda model: torch.optim.NAdam(model.parameters()), kind=scaled)
    losses = train(engine, 2)
    engine.save_checkpoint(folder)
    expected = losses + train(engine, 2, first=2)
    engine.load_checkpoint(folder)
    kept = [state for state in engine.optimizer.optimizer.state.values() if state]
    assert kept
    assert all(state["step"].dim() == 0 < state["exp_avg"].dim() for state in kept)
    assert_close(losses + train(engine, 2, first=2), expected, 1e-6)


def case_a_save_that_one_rank_cannot_make_fails_on_all(folder: Path) -> None:
    file = folder / "file"
    if RANK == 0:
        file.write_text("")
    for make_optimizer in (adamw, sgd):
        engine = engine_at(2, make_optimizer)
        train(engine, 1)
        engine.communicator.barrier()
        for save_latest in (True, False):
            raises(zerorun.IoError, "file", engine.save_checkpoint, file, save_latest=save_latest)
        state = {"x": object() if RANK == WORLD_SIZE - 1 else 1}
        text = "client_state['x'] is of builtins.object, which JSON has no form for"
        refuses(text, engine.save_checkpoint, folder, client_state=state)
        assert [path.name for path in folder.iterdir()] == ["file"]
        train(engine, 1, first=1)
    raises(zerorun.IoError, "file", engine.save_16bit_model, file)
    engine.save_16bit_model(folder / "out")
    assert [path.name for path in (folder / "out").iterdir()] == ["pytorch_model.bin"]


def case_latest_is_not_touched_when_it_is_not_asked_for(folder: Path) -> None:
    engine = engine_at(2, sgd)
    train(engine, 1)
    engine.save_checkpoint(folder / "unnamed", "", save_latest=False)
    assert (folder / "unnamed" / "global_step1").is_dir()
    engine.save_checkpoint(folder, "side", save_latest=False)
    assert not (folder / "latest").exists()
    engine.save_checkpoint(folder, "main")
    train(engine, 1)
    if RANK == 0:  # what a crash in the middle leaves
        (folder / ".side.tmp-0123456789abcdef").mkdir()
    engine.save_checkpoint(folder, "main")
    engine.load_checkpoint(folder, "side")
    engine.load_checkpoint(folder, "main")
    assert not (folder / ".side.tmp-0123456789abcdef").exists()
    time = (folder / "latest").stat().st_mtime_ns
    engine.save_checkpoint(folder, "side", save_latest=False)  # in place of the first
    assert (folder / "latest").stat().st_mtime_ns == time
    expected = engine._core.parameter_hash()
    train(engine, 1)
    engine.load_checkpoint(folder, "side")
    assert engine.global_steps == 2
    assert engine._core.parameter_hash() == expected
