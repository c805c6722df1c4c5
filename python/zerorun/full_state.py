"""The whole model on one rank, for saving in other formats."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import all_or_none
from zerorun.partition import partition_of

__all__ = ["full_state_dict", "save_full_state"]


def full_state_dict(
    model: nn.Module, communicator: _C.Communicator, exclude_frozen: bool = False
) -> dict[str, torch.Tensor] | None:
    """The model's state dict in its own dtype, copied to rank 0's host memory; None on the others.

    Collective. Parameters are gathered one unit at a time. Tied parameters share their copy.
    """
    keep = communicator.rank == 0
    state: dict[str, torch.Tensor] = {}
    copies: dict[nn.Parameter, torch.Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, nn.Parameter):
            if exclude_frozen and not value.requires_grad:
                continue
            if value not in copies:
                copies[value] = _copy(value, keep)
            if keep:
                state[name] = copies[value]
        elif keep:
            state[name] = _on_host(value) if isinstance(value, torch.Tensor) else value
    communicator.barrier("full state dict")
    return state if keep else None


def _on_host(value: torch.Tensor) -> torch.Tensor:
    return value.detach().to("cpu", copy=True)


def _copy(parameter: nn.Parameter, keep: bool) -> Any:
    partition = partition_of(parameter)
    if partition is None:
        return _on_host(parameter) if keep else None
    partition.acquire()
    try:
        return _on_host(parameter) if keep else None
    finally:
        partition.release()


def save_full_state(
    model: nn.Module,
    communicator: _C.Communicator,
    directory: str | os.PathLike[str],
    filename: str,
    exclude_frozen: bool = False,
) -> None:
    """Writes full_state_dict into `directory`/`filename`, on rank 0. Collective.

    The file is complete or not there. Raises IoError on every rank.
    """
    state = full_state_dict(model, communicator, exclude_frozen)
    with all_or_none(communicator, "saving the model"):
        if state is not None:
            os.makedirs(directory, exist_ok=True)
            _write(state, os.path.join(directory, filename))


def _write(state: dict[str, Any], path: str) -> None:
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
