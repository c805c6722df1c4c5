"""Data loaders that give each rank its part of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler

from zerorun import _C

__all__ = ["RepeatingLoader", "make_dataloader"]


def make_dataloader(
    dataset: Any,
    batch_size: int,
    communicator: _C.Communicator,
    collate_fn: Callable[..., Any] | None = None,
    **options: Any,
) -> DataLoader[Any]:
    """Shuffled, a different part on every rank; call ``loader.sampler.set_epoch`` each epoch."""
    ranks = communicator.world_size
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, ranks, communicator.rank)
    return DataLoader(
        dataset, batch_size=batch_size, sampler=sampler, collate_fn=collate_fn, **options
    )


class RepeatingLoader:
    """Starts a loader again when it ends."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._iterator = iter(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            self._iterator = iter(self.loader)
            return next(self._iterator)
