"""Saves that go on while the engine trains."""

import functools
import resource
import signal
from pathlib import Path

import torch
import zerorun
from torch import nn

from cases.models import *

SAVED = 3  # steps before the save


def engine_at(stage: int, seed: int = 0, **keys: object) -> zerorun.ZeroEngine:
    model = make(seed=seed)
    return initialize(model, adamw(model), config=config(stage, **keys))[0]


def case_the_configuration_makes_saves_asynchronous(folder: Path) -> None:
    wanted = {"async_save": True, "keep_last": 2, "keep_every": 4}
    engine = engine_at(2, checkpoint=wanted)
    for _ in range(7):
        train(engine, 1)
        engine.save_checkpoint(folder / "run")
    engine.destroy()  # waits for the last one
    engine = engine_at(2, seed=5)
    tags = sorted(path.name for path in (folder / "run").glob("global_step*"))
    assert tags == ["global_step4", "global_step6", "global_step7"], tags
    assert engine.load_checkpoint(folder / "run")[0] == str(folder / "run" / "global_step7")


def case_states_of_a_torch_optimizer_are_saved_with_it(folder: Path) -> None:
    model = make()
    optimizer = torch.optim.Adamax(model.parameters(), lr=0.05)
    engine = initialize(model, optimizer, config=config(2))[0]
    train(engine, SAVED)
    engine.save_checkpoint(folder / "run", "tag", blocking=False)
    expected = train(engine, 3)
    engine.load_checkpoint(folder / "run")  # waits for the save
    assert train(engine, 3) == expected
    engine.save_checkpoint(folder / "run", "tag", blocking=False)
    engine.wait_for_checkpoint()
    shards = [path for path in (folder / "run").iterdir() if path.name.startswith("optimizer_")]
    assert len(shards) == 1, "the files of the replaced save are gone"


def without_room(nbytes: int) -> None:
    """No file of this process grows beyond so many bytes: a disk that is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))


def with_room() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


class Wide(nn.Module):
    """Larger than the ranks' shared memory, so that only a checkpoint meets the limit."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(400, 400)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs).square().mean()


def case_an_error_in_the_background_is_raised_by_the_next_call(folder: Path) -> None:
    def step(engine: zerorun.ZeroEngine) -> None:
        for _ in range(10_000):  # until the thread has met the limit
            engine.backward(engine(torch.ones(4, 400)))
            engine.step()

    def wait(engine: zerorun.ZeroEngine) -> None:
        engine.wait_for_checkpoint()

    def save(engine: zerorun.ZeroEngine) -> None:
        engine.save_checkpoint(folder / "other", blocking=False)

    for call in (step, wait, save):
        torch.manual_seed(0)
        model = Wide()
        engine = initialize(model, adamw(model), config=config(2))[0]
        engine.save_checkpoint(folder / "run", "good")
        if RANK == 0:
            without_room(400_000)
        try:
            engine.save_checkpoint(folder / "run", "new", blocking=False)
            raises(zerorun.IoError, "File too large", functools.partial(call, engine))
        finally:
            if RANK == 0:
                with_room()
        assert sorted(path.name for path in (folder / "run").iterdir()) == ["good", "latest"]
        assert not (folder / "other").exists()
        engine.save_checkpoint(folder / "run", "good", blocking=False)
        engine.destroy()  # waits for the save
