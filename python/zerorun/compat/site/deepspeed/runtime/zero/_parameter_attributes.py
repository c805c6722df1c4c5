"""What DeepSpeed's parameters have besides what every partitioned parameter of zerorun has.

They are properties of the class, so that a gather writes nothing to each parameter. Ordinary
parameters have none of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from zerorun.model.partition import Partition, partition_of
from zerorun.zero.gathered import status_of

from deepspeed._placeholders import AbsentAttributeError
from deepspeed.utils import groups


def _secondary_tensor(_partition: Partition) -> None:
    """None without zero_hpz_partition_size, as there."""
    if groups.has_secondary_partitions:
        raise AbsentAttributeError(
            "zerorun keeps hpZ's partition (zero_hpz_partition_size) in one memory for many "
            "parameters, so a parameter has no ds_secondary_tensor. ds_tensor is this rank's part "
            "of the first partition, and deepspeed.zero.GatheredParameters makes the parameter full"
        )


def _summary(partition: Partition) -> Callable[..., dict[str, Any]]:
    """A method, whose result describes the parameter."""
    parameter = partition.parameter

    def ds_summary(use_debug_name: bool = False) -> dict[str, Any]:
        del use_debug_name
        return {
            "id": parameter.ds_id,
            "status": status_of(partition).name,
            "numel": parameter.numel(),
            "ds_numel": parameter.ds_numel,
            "shape": tuple(parameter.shape),
            "ds_shape": tuple(parameter.ds_shape),
            "requires_grad": parameter.requires_grad,
            "grad_shape": None if parameter.grad is None else tuple(parameter.grad.shape),
            "persist": parameter.ds_persist,
            "active_sub_modules": parameter.ds_active_sub_modules,
            "ds_tensor.shape": parameter.ds_tensor.shape,
        }

    return ds_summary


class _Gathered:
    """What ``all_gather_coalesced`` returns: there is nothing left to wait for."""

    def wait(self, **_options: Any) -> None:
        """The parameters are full."""


def _gather_coalesced(partition: Partition) -> Callable[..., _Gathered]:
    """A method: ``all_gather`` with a handle. Collective."""

    def all_gather_coalesced(params: Iterable[nn.Parameter], **_options: Any) -> _Gathered:
        partition.parameter.all_gather(list(params))
        return _Gathered()

    return all_gather_coalesced


def _absent(name: str, instead: str) -> Callable[[Partition], Any]:
    def get(_partition: Partition) -> Any:
        raise AbsentAttributeError(f"zerorun's parameters have no {name}: {instead}")

    return get


_ATTRIBUTES: dict[str, Callable[[Partition], Any]] = {
    "ds_status": status_of,
    "ds_secondary_tensor": _secondary_tensor,
    "ds_summary": _summary,
    "all_gather_coalesced": _gather_coalesced,
    "partition_gradients": _absent(
        "partition_gradients", "backward reduces gradients; safe_get_local_grad is this rank's part"
    ),
    "nvme_swapper": _absent(
        "nvme_swapper", "the engine reads and writes parameters on NVMe in gathers"
    ),
}


def _value(name: str, get: Callable[[Partition], Any], parameter: torch.nn.Parameter) -> Any:
    partition = partition_of(parameter)
    if partition is None:
        raise AttributeError(f"an ordinary parameter has no attribute '{name}'")
    return get(partition)


def install() -> None:
    """Gives torch's parameters the properties."""
    for name, get in _ATTRIBUTES.items():
        setattr(torch.nn.Parameter, name, property(functools.partial(_value, name, get)))
