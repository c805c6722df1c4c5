"""Saves that go on while the engine trains, and saves of every rank to a folder of its own, as on
hosts of their own (checkpoint.use_node_local_storage)."""

import atexit
import resource
import signal

from zerorun.shards import background_saver

from cases.checkpoints import Normalised
from cases.models import *


def case_the_configuration_makes_saves_asynchronous(folder: Path) -> None:
    wanted = {"async_save": True, "keep_last": 2, "keep_every": 4}
    _, engine = started(config(2, checkpoint=wanted))
    for _ in range(7):
        train(engine, 1)
        engine.save_checkpoint(folder / "run")
    engine.destroy()  # waits for the last one
    _, engine = started(config(2), seed=5)
    tags = sorted(path.name for path in (folder / "run").glob("global_step*"))
    assert tags == ["global_step4", "global_step6", "global_step7"], tags
    assert engine.load_checkpoint(folder / "run")[0] == str(folder / "run" / "global_step7")


def case_states_of_a_torch_optimizer_are_saved_with_it(folder: Path) -> None:
    _, engine = started(config(2), optimizer=lambda m: torch.optim.Adamax(m.parameters(), lr=0.05))
    train(engine, 3)
    engine.save_checkpoint(folder / "run", "tag", blocking=False)
    expected = train(engine, 3)
    engine.load_checkpoint(folder / "run")  # waits for the save
    assert train(engine, 3) == expected
    engine.save_checkpoint(folder / "run", "tag", blocking=False)
    engine.wait_for_checkpoint()
    shards = [path for path in (folder / "run").iterdir() if path.name.startswith("optimizer_")]
    assert len(shards) == 1, "the files of the replaced save are gone"


def case_engines_that_went_leave_nothing_for_the_end_of_the_program(folder: Path) -> None:
    counts = set()
    for _ in range(3):
        engine = zerorun.initialize(model=nn.Linear(4, 4), config=config(2))[0]  # kept by nobody
        engine.save_checkpoint(folder / "run", blocking=False)
        engine.destroy()
        del engine
        gc.collect()
        counts.add((atexit._ncallbacks(), len(weakref.finalize._registry)))
    assert len(counts) == 1, counts


def case_a_forked_process_leaves_a_save_to_its_parent(folder: Path) -> None:
    _, engine = started(config(2), lambda: nn.Linear(2000, 2000))
    engine.save_checkpoint(folder / "run", "tag", blocking=False)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        background_saver._finish()  # as at its end
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    engine.wait_for_checkpoint()
    assert engine.load_checkpoint(folder / "run")[0] == str(folder / "run" / "tag")


@contextlib.contextmanager
def full_disk(nbytes: int) -> Iterator[None]:
    """No file of rank 0 grows beyond so many bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if RANK == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def case_an_error_in_the_background_is_raised_by_the_next_call(folder: Path) -> None:
    def step(engine: zerorun.ZeroEngine) -> None:
        for _ in range(10_000):  # until the thread has met the limit
            engine.backward(engine(torch.ones(4, 400)).square().mean())
            engine.step()

    def save(engine: zerorun.ZeroEngine) -> None:
        engine.save_checkpoint(folder / "other", blocking=False)

    for call in (step, zerorun.ZeroEngine.wait_for_checkpoint, save):
        # Larger than the ranks' shared memory, so that only a checkpoint meets the limit.
        _, engine = started(config(2), lambda: nn.Linear(400, 400))
        engine.save_checkpoint(folder / "run", "good")
        with full_disk(400_000):
            engine.save_checkpoint(folder / "run", "new", blocking=False)
            raises(zerorun.IoError, "File too large", call, engine)
        assert sorted(path.name for path in (folder / "run").iterdir()) == ["good", "latest"]
        assert not (folder / "other").exists()
        engine.save_checkpoint(folder / "run", "good", blocking=False)
        engine.destroy()  # waits for the save


def engine_at(stage: int) -> zerorun.ZeroEngine:
    settings = config(stage, checkpoint={"use_node_local_storage": True})
    return started(settings, Normalised, optimizer=sgd)[1]


def case_states_of_a_torch_optimizer_follow_their_ranks(folder: Path) -> None:
    for stage in (0, 2, 3):
        for beside in (False, True):
            engine = engine_at(stage)
            train(engine, 2)
            disks = [folder / f"{stage}{beside}-host{rank}" for rank in range(WORLD_SIZE)]
            engine.save_checkpoint(disks[RANK], blocking=not beside)
            engine.wait_for_checkpoint()
            (states,) = disks[RANK].glob("optimizer_shards.*")
            assert [path.name for path in states.iterdir()] == [f"rank{RANK}.pt"]
            expected = train(engine, 2, first=2)
            buffer = next(engine.module.buffers()).clone()
            for moved in (RANK, RANK - 1):  # at home, then on another host
                engine = engine_at((stage + 1) % 4)
                engine.load_checkpoint(disks[moved])
                assert_close(train(engine, 2, first=2), expected, 1e-6)
                if RANK == 0:  # whose buffers are saved
                    assert torch.equal(next(engine.module.buffers()), buffer)


def case_states_of_a_torch_optimizer_that_no_host_has_are_named(folder: Path) -> None:
    own = folder / f"host{RANK}"
    engine = engine_at(2)
    train(engine, 1)
    engine.save_checkpoint(own)
    (states,) = own.glob("optimizer_shards.*")
    last = states / f"rank{WORLD_SIZE - 1}.pt"
    missing = f"no rank of this job finds {last.name}"
    for damage, message in ((flip, "damaged"), (Path.unlink, missing)):
        train(engine, 1, first=1)
        if last.exists():
            damage(last)
        engine.communicator.barrier()
        refuses_to_load(engine, own, message)
