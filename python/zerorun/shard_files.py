"""The states of a torch optimizer that runs on shards, beside the checkpoint they belong to.

One file per rank in a folder of its own; the checkpoint names the folder, and is written last.
States are stored by parameter and element, so another world size may load them.
"""

from __future__ import annotations

import os
import secrets
import shutil
from typing import TYPE_CHECKING, Any

import torch

from zerorun import _C

if TYPE_CHECKING:
    from zerorun.engine import ZeroEngine

__all__ = ["Piece", "assemble", "load", "remove_stale", "save"]

# Elements [begin, begin + numel) of a parameter's state.
Piece = tuple[int, int, dict[str, Any]]

_PREFIX = "optimizer_shards"


def save(engine: ZeroEngine, directory: str, tag: str) -> str:
    """Collective; returns the folder's name."""
    number = torch.tensor([secrets.randbits(62)])
    engine.communicator.broadcast(number, 0, "name of the optimizer's files")
    name = f"{_PREFIX}.{tag}.{number.item():x}"
    folder = os.path.join(directory, name)
    os.makedirs(folder, exist_ok=True)
    names = {index: parameter for parameter, index in engine.layout.ids.items()}
    pieces = []
    for interval in engine.core.state_intervals():
        if interval.grad is None:
            continue
        state = engine.optimizer.shard_state(interval.parameter, interval.begin)
        parameter = engine.layout.names[names[interval.parameter]]
        pieces.append((parameter, interval.begin, interval.numel, state))
    torch.save(pieces, os.path.join(folder, f"rank{engine.communicator.rank}.pt"))
    engine.communicator.barrier("optimizer states saved")
    return name


def remove_stale(directory: str, tag: str, current: str | None) -> None:
    """Folders of earlier checkpoints of the same tag."""
    for name in os.listdir(directory):
        if name.startswith(f"{_PREFIX}.{tag}.") and name != current:
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)


def load(engine: ZeroEngine, folder: str) -> None:
    """Every rank takes its elements out of all files. Raises CheckpointError when one lacks."""
    pieces: dict[str, list[Piece]] = {}
    try:
        files = sorted(os.listdir(folder))
        for file in files:
            path = os.path.join(folder, file)
            for name, begin, numel, state in torch.load(path, weights_only=True, mmap=True):
                pieces.setdefault(name, []).append((begin, numel, state))
    except OSError as error:
        raise _C.CheckpointError(f"optimizer states in {folder}: {error}") from error
    names = {
        index: name for p, index in engine.layout.ids.items() for name in [engine.layout.names[p]]
    }
    for interval in engine.core.state_intervals():
        if interval.grad is None:
            continue
        name = names[interval.parameter]
        state = assemble(pieces.get(name, []), interval.begin, interval.numel, name)
        engine.optimizer.load_shard_state(interval.parameter, interval.begin, state)


def assemble(pieces: list[Piece], begin: int, numel: int, name: str) -> dict[str, Any]:
    """The state of elements [begin, begin + numel) of a parameter."""
    state: dict[str, Any] = {}
    filled = 0
    for piece_begin, piece_numel, values in pieces:
        low, high = max(begin, piece_begin), min(begin + numel, piece_begin + piece_numel)
        if low >= high:
            continue
        filled += high - low
        for key, value in values.items():
            if not isinstance(value, torch.Tensor) or value.numel() != piece_numel:
                state[key] = value.clone() if isinstance(value, torch.Tensor) else value
                continue
            if key not in state:
                state[key] = torch.empty(numel, dtype=value.dtype)
            part = value.flatten()[low - piece_begin : high - piece_begin]
            state[key][low - begin : high - begin] = part
    if filled != numel:
        raise _C.CheckpointError(
            f"optimizer state of {name}: {filled} of {numel} elements are in the checkpoint"
        )
    return state
