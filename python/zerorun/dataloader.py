"""Data loaders that give each rank its part of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler

from zerorun import _C

_END = object()  # of an epoch


def make_dataloader(
    dataset: Any,
    batch_size: int,
    communicator: _C.Communicator,
    collate_fn: Callable[..., Any] | None = None,
    watch: AbstractContextManager[None] | None = None,
    **options: Any,
) -> DataLoader[Any]:
    """A data loader with shuffled batches, of different samples on every rank.

    Call ``loader.sampler.set_epoch`` before each epoch. `watch`: a context manager that is entered
    while the loader is waited for.
    """
    ranks = communicator.world_size
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, ranks, communicator.rank)
    loader: WatchedLoader = WatchedLoader(
        dataset, batch_size=batch_size, sampler=sampler, collate_fn=collate_fn, **options
    )
    loader.watch = watch
    return loader


class WatchedLoader(DataLoader[Any]):
    """A data loader that enters `watch` while its batches are waited for."""

    watch: AbstractContextManager[None] | None = None

    def __iter__(self) -> Any:
        batches = super().__iter__()
        return batches if self.watch is None else self._watched(batches, self.watch)

    @staticmethod
    def _watched(batches: Any, watch: AbstractContextManager[None]) -> Iterator[Any]:
        while True:
            with watch:
                batch = next(batches, _END)
            if batch is _END:
                return
            yield batch


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
