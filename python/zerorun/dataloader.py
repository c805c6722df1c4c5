"""Data loaders that give each rank its part of a dataset, and resume where they were."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from zerorun import _C

_logger = logging.getLogger("zerorun")
_END = object()  # of an epoch
_KEYS = ("epoch", "samples", "length")  # of a position


def make_dataloader(
    dataset: Any,
    batch_size: int,
    communicator: _C.Communicator,
    collate_fn: Callable[..., Any] | None = None,
    watch: AbstractContextManager[None] | None = None,
    **options: Any,
) -> ResumableLoader:
    """A data loader with shuffled batches, of different samples on every rank.

    Call ``loader.set_epoch`` before each epoch. Of an IterableDataset, which keeps its order, ranks
    take turns. `watch`: a context manager that is entered while the loader is waited for.
    """
    ranks, rank = communicator.world_size, communicator.rank
    if isinstance(dataset, IterableDataset):
        if options.get("num_workers"):
            raise _C.ConfigError(
                f"num_workers={options['num_workers']} with {type(dataset).__name__}, an "
                "IterableDataset: each worker would give all of it; expected 0"
            )
        dataset = _Turns(dataset, ranks, rank)
    else:
        options["sampler"] = PartSampler(dataset, ranks, rank)
    loader = ResumableLoader(dataset, batch_size=batch_size, collate_fn=collate_fn, **options)
    loader.ranks, loader.watch = ranks, watch or loader.watch
    return loader


class PartSampler(DistributedSampler[Any]):
    """torch's DistributedSampler, which can also begin in the middle of an epoch.

    What is left of the epoch may be divided among another number of ranks than its beginning.
    """

    start = 0  # samples of all ranks before the first

    def __iter__(self) -> Iterator[Any]:
        if self.start == 0:
            return super().__iter__()
        order = list(range(len(self.dataset)))  # type: ignore[arg-type]
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(len(order), generator=generator).tolist()
        rest = order[self.start :]
        missing = -len(rest) % self.num_replicas  # filled with the first, as torch does
        rest += itertools.islice(itertools.cycle(order), missing)
        return iter(rest[self.rank :: self.num_replicas])


class _Turns(IterableDataset[Any]):
    """Sample i of an IterableDataset on rank i modulo their number."""

    start = 0  # samples of all ranks before the first

    def __init__(self, dataset: IterableDataset[Any], ranks: int, rank: int) -> None:
        self.dataset, self._ranks, self._rank = dataset, ranks, rank

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __iter__(self) -> Iterator[Any]:
        first: list[Any] = []
        turn: list[Any] = []
        for at, sample in enumerate(self.dataset):
            if at < self._ranks:
                first.append(sample)
            if at >= self.start:
                turn.append(sample)
            if len(turn) == self._ranks:
                yield turn[self._rank]
                turn.clear()
        if turn:  # filled with the first, so that all ranks have as many
            filled = itertools.chain(turn, itertools.cycle(first))
            yield next(itertools.islice(filled, self._rank, None))


class ResumableLoader(DataLoader[Any]):
    """A data loader that can go on in the middle of an epoch, on another number of ranks, too.

    A position counts the samples of all ranks. It is that after the last batch that the loader has
    given, however far its workers have read ahead.
    """

    ranks = 1  # that take different samples
    watch: AbstractContextManager[None] = nullcontext()  # entered while batches are waited for
    _epoch = 0  # of data that does not know it
    _given = _used = (0, 0)  # the position, and that after the last update: epoch, samples
    _resumed: tuple[int, int] | None = None  # where the next iterator begins

    @property
    def epoch(self) -> int:
        return int(getattr(self.sampler, "epoch", self._epoch))

    def set_epoch(self, epoch: int) -> None:
        """Gives the next ``iter(loader)`` the order of an epoch. It begins with the first sample,
        or where load_state_dict() has put it if that was in this epoch."""
        self._epoch = epoch
        for each in (self.sampler, self.dataset):
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position; the same on all ranks."""
        return dict(zip(_KEYS, (*self._given, self._length()), strict=True))

    @property
    def used(self) -> dict[str, Any]:
        """The position that an engine saves: after the last batch that an update has used."""
        return dict(zip(_KEYS, (*self._used, self._length()), strict=True))

    def mark_used(self) -> None:
        """The engine's step() says that an update has used the batches given so far."""
        self._used = self._given

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next ``iter(loader)`` begins at a position of state_dict()."""
        epoch, samples, saved = (state[key] for key in _KEYS)
        length = self._length()
        if saved != length:
            _logger.warning(
                "the data has %s samples, but had %s when its position was saved: its epoch %d "
                "begins anew",
                *(length, saved, epoch),
            )
            samples = 0
        self.set_epoch(epoch)
        self._given = self._used = self._resumed = (epoch, samples)

    def __iter__(self) -> Any:
        epoch, begin = self._resumed or (self.epoch, 0)
        self._resumed = None
        begin = begin if epoch == self.epoch else 0
        source: Any = self.dataset if isinstance(self.dataset, IterableDataset) else self.sampler
        if isinstance(source, PartSampler | _Turns):
            source.start = begin
            return self._counted(super().__iter__(), begin)
        # The program divides the data itself: this rank drops as many batches as it had been given.
        batches = itertools.islice(super().__iter__(), -(-begin // self._per_batch()), None)
        return self._counted(batches, begin)

    def _counted(self, batches: Iterator[Any], done: int) -> Iterator[Any]:
        length, epoch = self._length(), self.epoch
        while True:
            with self.watch:
                batch = next(batches, _END)
            if batch is _END:
                return
            done += self._per_batch()
            if length is not None:  # the last batch may be a smaller one
                done = min(done, length)
            self._given = (epoch, done)
            yield batch

    def _per_batch(self) -> int:
        return self.ranks * (self.batch_size or 1)

    def _length(self) -> int | None:
        return None if isinstance(self.dataset, IterableDataset) else len(self.dataset)  # type: ignore[arg-type]


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
