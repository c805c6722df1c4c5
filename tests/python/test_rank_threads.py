"""Ranks that are threads of one Python process."""

import threading

import torch
import zerorun
from zerorun import _C


def test_a_rank_that_ends_lets_its_peers_threads_run() -> None:
    """It waits for a reduction that its peer takes part in later."""
    store = _C.make_memory_store()
    settings = {"train_batch_size": 2, "zero_optimization": {"stage": 2, "overlap_comm": True}}
    config = zerorun.config.parse(settings).config
    ending = threading.Event()
    errors: list[Exception] = []
    reduced: list[list[float]] = []  # what rank 1 holds of the gradient

    def train(rank: int) -> None:
        try:
            communicator = _C.connect(rank, 2, store, "threads", 10.0)
            spec = _C.ParameterSpec("weight", [512], "layer")
            engine = _C.Engine(config, communicator, [spec], [_C.ParameterGroup()])
            collector = _C.GradientCollector(engine)
            weight = torch.zeros(512)
            weight.grad = torch.ones(512)
            if rank == 1:
                ending.wait()
            collector.hook(0)(weight)
            if rank == 1:
                engine.end_micro_step()
                reduced.extend(
                    torch.from_dlpack(part.grad).tolist() for part in engine.state_intervals()
                )
            ending.set()
            del collector
            engine.close()
        except Exception as error:
            errors.append(error)
        finally:
            ending.set()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert reduced == [[2.0] * 256]  # the sum over the ranks
