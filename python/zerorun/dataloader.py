"""Data loaders that give each rank its part of a dataset, and resume where they were."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from zerorun import _C
from zerorun.program_warning import is_number, logger

_END = object()  # of an epoch
_KEYS = ("epoch", "samples", "length")  # of a position


def make_dataloader(
    dataset: Any,
    batch_size: int,
    communicator: _C.Communicator,
    collate_fn: Callable[..., Any] | None = None,
    watch: AbstractContextManager[None] | None = None,
    **options: Any,
) -> "ResumableLoader":
    """A data loader with shuffled batches, of different samples on every rank.

    Call ``loader.set_epoch`` before each epoch. Of an IterableDataset, which keeps its order, ranks
    take turns. `watch`: a context manager that is entered while the loader is waited for.
    """
    for name in ("sampler", "batch_sampler"):
        if options.pop(name, None) is not None:
            raise _C.ConfigError(
                f"make_dataloader: got {name}, but its sampler divides the samples among ranks: "
                "leave it out (shuffle=False keeps the order), or use torch's DataLoader"
            )
    if batch_size is not None and not (is_number(batch_size, Integral) and batch_size >= 1):
        raise _C.ConfigError(
            f"make_dataloader: batch_size: got {batch_size!r}, expected samples from 1 on, or None "
            "for a dataset of batches"
        )
    ranks, rank = communicator.world_size, communicator.rank
    if isinstance(dataset, IterableDataset):
        if options.get("num_workers"):
            raise _C.ConfigError(
                f"num_workers={options['num_workers']} with {type(dataset).__name__}, an "
                "IterableDataset: each worker would give all of it; expected 0"
            )
        dataset = _Turns(dataset, ranks, rank)
    elif not hasattr(dataset, "__len__"):
        raise _C.ConfigError(
            f"make_dataloader: dataset: got {type(dataset).__name__}, expected one with a "
            "length, or an IterableDataset"
        )
    else:
        options["sampler"] = PartSampler(dataset, ranks, rank, options.pop("shuffle", True))
    try:
        loader = ResumableLoader(dataset, batch_size=batch_size, collate_fn=collate_fn, **options)
    except (TypeError, ValueError) as error:
        raise _C.ConfigError(
            f"make_dataloader: {error}: expected options of torch.utils.data.DataLoader"
        ) from error
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
        whole: DistributedSampler[Any] = DistributedSampler(
            self.dataset, 1, 0, self.shuffle, self.seed
        )
        whole.set_epoch(self.epoch)
        order = list(whole)
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

    def __len__(self) -> int:
        samples: int = len(self.dataset)  # type: ignore[arg-type]
        return math.ceil(samples / self._ranks)

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
    given, however far its workers have read ahead. An iterator begins with its first batch, not
    with ``iter(loader)``.
    """

    ranks = 1  # that take different samples
    watch: AbstractContextManager[None] = nullcontext()  # entered while batches are waited for
    _epoch = 0  # of data that does not know it
    parts_left = 0  # of the last batch, if another loader cuts it: it counts after the last one
    _before = _given = (0, 0)  # positions before and after the last batch: epoch, samples
    _used = (0, 0)  # the position after the last update
    _resumed: tuple[int, int] | None = None  # where the next iterator begins
    _loads = 0  # of positions, each of which ends the iterators before it

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
        return dict(zip(_KEYS, (*self._position, self._length()), strict=True))

    @property
    def _position(self) -> tuple[int, int]:
        return self._before if self.parts_left else self._given

    @property
    def used(self) -> dict[str, Any]:
        """The position that an engine saves: that of the last update."""
        return dict(zip(_KEYS, (*self._used, self._length()), strict=True))

    def mark_used(self) -> None:
        """The engine's step() says that an update has used the batches given so far."""
        self._used = self._position

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iterator begins at a position of state_dict(). Those that have begun before
        raise ConfigError."""
        epoch, samples, saved = (state[key] for key in _KEYS)
        length = self._length()
        if saved != length:
            logger.warning(
                "the data has %s samples, but had %s when its position was saved: its epoch %d "
                "begins anew",
                *(length, saved, epoch),
            )
            samples = 0
        self.set_epoch(epoch)
        self._before = self._given = self._used = self._resumed = (epoch, samples)
        self._loads += 1

    def __iter__(self) -> Any:
        loads, length, epoch = self._loads, self._length(), self.epoch
        resumed, self._resumed = self._resumed, None
        done = resumed[1] if resumed and resumed[0] == epoch else 0
        source: Any = self.dataset if isinstance(self.dataset, IterableDataset) else self.sampler
        if isinstance(source, PartSampler | _Turns):
            source.start = done
            batches: Iterator[Any] = super().__iter__()
        else:
            # The program divides the data itself: this rank drops as many batches as it was given.
            dropped = -(-done // self._per_batch())
            batches = itertools.islice(super().__iter__(), dropped, None)
        while True:
            with self.watch:
                batch = next(batches, _END)
            if batch is _END:
                return
            before = (epoch, done)
            done += self._per_batch()
            if length is not None:  # the last batch may be a smaller one
                done = min(done, length)
            self._before, self._given, self.parts_left = before, (epoch, done), 0
            yield batch
            if loads != self._loads:
                raise _C.ConfigError(
                    "the data loader was put at another position while this iterator was in use: "
                    "load the checkpoint before iter(loader), or begin a new iterator after it"
                )

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
