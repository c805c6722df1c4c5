"""checkpoint.use_node_local_storage: every rank saves to a folder of its own, as on hosts of their
own."""

from cases.checkpoints import Normalised
from cases.models import *


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
    for damage, message in (
        (flip, "damaged"),
        (Path.unlink, f"no rank of this job finds {last.name}"),
    ):
        train(engine, 1, first=1)
        if last.exists():
            damage(last)
        engine.communicator.barrier()
        refuses_to_load(engine, own, message)
