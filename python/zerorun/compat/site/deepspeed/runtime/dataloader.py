"""Data loaders."""

# ruff: noqa: F401 - scripts import torch's names from here
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler
from zerorun.dataloader import PartSampler, RepeatingLoader, ResumableLoader


class DeepSpeedDataLoader(ResumableLoader):
    """torch's DataLoader with this rank's part of a dataset, and DeepSpeed's arguments.

    It also has state_dict() and load_state_dict(), for a program's client_state.

    Of those the timer and the curriculum are not used: a curriculum is a sampler of your own.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        self,
        dataset: Any,
        batch_size: int,
        pin_memory: bool,
        local_rank: int,
        tput_timer: Any = None,
        collate_fn: Callable[..., Any] | None = None,
        num_local_io_workers: int | None = None,
        data_sampler: Any = None,
        data_parallel_world_size: int | None = None,
        data_parallel_rank: int | None = None,
        dataloader_drop_last: bool = False,
        deepspeed_dataloader_config: Any = None,
        shuffle: bool = True,
    ) -> None:
        if deepspeed_dataloader_config:
            raise NotImplementedError(
                "DeepSpeedDataLoader: curricula and data efficiency are not part of zerorun; give "
                "data_sampler"
            )
        if data_sampler is None and not isinstance(dataset, IterableDataset):
            data_sampler = PartSampler(
                dataset, data_parallel_world_size, data_parallel_rank, shuffle
            )
        super().__init__(
            dataset,
            batch_size,
            sampler=data_sampler,
            collate_fn=collate_fn,
            num_workers=num_local_io_workers or 0,
            pin_memory=pin_memory and torch.cuda.is_available(),
            drop_last=dataloader_drop_last,
        )
        self.data_sampler = data_sampler
        self.ranks = data_parallel_world_size or 1
        self._next: Iterator[Any] | None = None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._next = None

    def __next__(self) -> Any:
        """The next batch of an epoch that iter() or the first call began."""
        if self._next is None:
            self._next = super().__iter__()
        try:
            return next(self._next)
        except StopIteration:
            self._next = None
            raise
