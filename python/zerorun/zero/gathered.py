"""GatheredParameters: partitioned parameters, full within a with-block."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.external import register_external_parameter
from zerorun.partition import Partition, partition_of

__all__ = ["GatheredParameters"]


class GatheredParameters:
    """Makes partitioned parameters full on every rank for the block. Collective.

    `params`: a parameter or any iterable of them; ordinary parameters and duplicates are allowed
    and left alone. `modifier_rank`: that rank's changes are what all ranks have afterwards; None:
    the block only reads. `fwd_module`: its forward uses the parameters, which are registered as
    external to it. `enabled` False: nothing happens.
    """

    def __init__(
        self,
        params: nn.Parameter | Iterable[nn.Parameter],
        modifier_rank: int | None = None,
        fwd_module: nn.Module | None = None,
        enabled: bool = True,
    ) -> None:
        given = [params] if isinstance(params, torch.Tensor) else list(params)
        self._modifier_rank = modifier_rank
        self._partitions: list[Partition] = []
        if not enabled:
            return
        for parameter in given:
            partition = partition_of(parameter)
            if partition is not None and partition not in self._partitions:
                self._partitions.append(partition)
                if fwd_module is not None:
                    register_external_parameter(fwd_module, partition.parameter)

    def __enter__(self) -> None:
        for partition in self._partitions:
            partition.acquire()
            if self._modifier_rank is not None:
                # Changes stay with this rank until the end of the block.
                partition.parameter.data = partition.parameter.detach().clone()

    def __exit__(
        self,
        error: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        try:
            if self._modifier_rank is not None and error is None:
                for partition in self._partitions:
                    self._share(partition, self._modifier_rank)
        finally:
            for partition in self._partitions:
                partition.release()

    @staticmethod
    def _share(partition: Partition, rank: int) -> None:
        values: Any = partition.parameter.detach()
        if values.shape != partition.shape:
            raise _C.ConfigError(
                f"GatheredParameters: a parameter of shape {tuple(partition.shape)} has become "
                f"{tuple(values.shape)} within the block; its shape cannot change"
            )
        flat = values.contiguous().flatten()
        partition.broadcast(flat, rank)
        partition.store(flat)
