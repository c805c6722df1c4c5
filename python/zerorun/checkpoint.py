"""Saving and loading a model in training; docs/checkpoint_format.md specifies the bytes on disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zerorun import _C, program_state, shard_files
from zerorun.agreement import all_or_none
from zerorun.optimizer import ShardOptimizer
from zerorun.shards import Shards

__all__ = ["Training", "load", "save"]

_logger = logging.getLogger("zerorun")
_LATEST = "latest"


@dataclass
class Training:
    """The parts of a training that its shards do not hold."""

    module: nn.Module
    optimizer: ShardOptimizer | None
    lr_scheduler: Any
    global_steps: int
    micro_steps: int


def save(  # noqa: PLR0913 - the options of the engine's method
    shards: Shards,
    training: Training,
    directory: str | os.PathLike[str],
    tag: str | None,
    client_state: dict[str, Any] | None,
    *,
    save_latest: bool,
    exclude_frozen: bool,
) -> str:
    """Collective; returns the tag. An earlier checkpoint stays loadable until this is complete.

    Raises CheckpointError, ConfigError or IoError on every rank.
    """
    folder = os.fspath(directory)
    own = f"global_step{training.global_steps}" if tag in (None, "") else str(tag)
    name = _of_rank_zero(own, shards.communicator)
    with all_or_none(shards.communicator, "save_checkpoint"):
        data = _data(shards, training)
        objects = program_state.encode_objects(_objects(training, client_state))
    record: shard_files.Record | None = None
    if shards.torch_states is not None:
        record = data["shard_files"] = shard_files.save(shards, folder, name)
    text = program_state.encode(data, objects)
    try:
        _C.save_checkpoint(shards.core, folder, name, text, exclude_frozen, save_latest)
    except Exception:
        if record is not None:
            shard_files.discard(shards, folder, record)
        raise
    with all_or_none(shards.communicator, "save_checkpoint"):
        if shards.communicator.rank == 0:
            shard_files.remove_stale(folder, name, record)
    return name


def _of_rank_zero(text: str, communicator: _C.Communicator) -> str:
    """Rank 0's text on every rank. Collective."""
    own = text.encode()
    length = torch.tensor([len(own)])
    communicator.broadcast(length, 0, "length of the checkpoint's tag")
    data = torch.zeros(int(length.item()), dtype=torch.uint8)
    if communicator.rank == 0:
        data = torch.tensor(list(own), dtype=torch.uint8)
    communicator.broadcast(data, 0, "tag of the checkpoint")
    return bytes(data.tolist()).decode()


def _data(shards: Shards, training: Training) -> dict[str, Any]:
    """The part of plain values and tensors, which is read without running code."""
    return {
        "counters": {"global_steps": training.global_steps, "micro_steps": training.micro_steps},
        "buffers": _buffers(training.module),
        "optimizer": _optimizer_name(shards, training.optimizer),
        "shard_files": None,
    }


def _objects(training: Training, client_state: dict[str, Any] | None) -> dict[str, Any]:
    """The part that may hold objects of any class."""
    optimizer, scheduler = training.optimizer, training.lr_scheduler
    return {
        "client_state": client_state or {},
        "param_groups": None if optimizer is None else optimizer.group_settings(),
        "lr_scheduler": scheduler.state_dict() if hasattr(scheduler, "state_dict") else None,
    }


def _optimizer_name(shards: Shards, optimizer: ShardOptimizer | None) -> str | None:
    """A name that two optimizers share when each understands the other's states."""
    if optimizer is None:
        return None
    if shards.external:
        return f"{type(optimizer.optimizer).__name__} of PyTorch"
    rule = shards.settings.optimizer.type
    # Adam and AdamW keep the same states.
    return f"zerorun's {'Adam' if rule == 'AdamW' else rule}"


def load(  # noqa: PLR0913 - likewise
    shards: Shards,
    training: Training,
    directory: str | os.PathLike[str],
    tag: str | None,
    *,
    strict: bool,
    optimizer_states: bool,
    lr_scheduler_states: bool,
    counters: bool,
) -> tuple[str | None, dict[str, Any] | None]:
    """Collective; (path, client_state), or (None, None) when there is no checkpoint.

    Updates the counters of `training` if these are asked for. A checkpoint that is damaged or does
    not fit is a CheckpointError on every rank, and nothing has changed. Unpickles the client_state
    and the scheduler's state, which can run code.
    """
    folder = os.fspath(directory)
    if tag is None and not os.path.exists(os.path.join(folder, _LATEST)):
        _logger.warning("no file '%s' in %s: no checkpoint was loaded", _LATEST, folder)
        return None, None
    name = "" if tag is None else str(tag)
    optimizer = training.optimizer if optimizer_states else None
    chunks: shard_files.Chunks | None = None
    with all_or_none(shards.communicator, "load_checkpoint"):
        text = _C.SavedModel(folder, name).client_state
        data, objects = program_state.decode(text), program_state.decode_objects(text)
        buffers = data.get("buffers", {})
        if strict and "buffers" in data:  # which the bundled train does not save
            _check_buffers(training.module, buffers, folder)
        if optimizer is not None:
            _check_optimizer(shards, optimizer, data, objects, folder)
            if shards.external:
                shard_files.verify(shards, folder, data["shard_files"])
    if optimizer is not None and shards.external:
        with all_or_none(shards.communicator, "load_checkpoint"):
            chunks = shard_files.read(shards, folder, data["shard_files"], strict)
    loaded = _C.load_checkpoint(shards.core, folder, name, strict)
    _load_buffers(training.module, buffers)
    if optimizer is not None:
        if objects.get("param_groups") is not None:
            optimizer.load_group_settings(objects["param_groups"])
        if chunks is not None:
            shard_files.restore(shards, chunks)
    elif training.optimizer is not None:
        shards.core.reset_optimizer()
        shards.core.refresh_from_masters()
    scheduler, schedule = training.lr_scheduler, objects.get("lr_scheduler")
    if lr_scheduler_states and schedule and hasattr(scheduler, "load_state_dict"):
        scheduler.load_state_dict(schedule)
    if counters:
        progress = data.get("counters", {})
        training.global_steps = progress.get("global_steps", loaded.step)
        training.micro_steps = progress.get("micro_steps", 0)
    return os.path.join(folder, loaded.tag), objects.get("client_state", {})


def _check_optimizer(
    shards: Shards,
    optimizer: ShardOptimizer,
    data: dict[str, Any],
    objects: dict[str, Any],
    folder: str,
) -> None:
    """Compares the saved optimizer with this one; the core compares the states of its own rules."""
    own, saved = _optimizer_name(shards, optimizer), data.get("optimizer")
    if (saved is None and not shards.external) or (
        saved == own and (not shards.external or data["shard_files"])
    ):
        groups, present = objects.get("param_groups"), optimizer.param_groups
        if groups is None or len(groups) == len(present):
            return
        raise _C.CheckpointError(
            f"{folder}: the checkpoint has {len(groups)} parameter groups, this optimizer "
            f"{len(present)}"
        )
    raise _C.CheckpointError(
        f"{folder}: the checkpoint has the states of {saved or 'no optimizer'}, this engine's "
        f"optimizer is {own}; load_optimizer_states=False loads the model alone"
    )


def _buffers_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers that belong to the model's state dict."""
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            yield name, value


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().to("cpu", copy=True) for name, value in _buffers_of(model)}


def _check_buffers(model: nn.Module, saved: dict[str, torch.Tensor], folder: str) -> None:
    """Raises CheckpointError unless the model has the saved buffers, in their shapes."""
    present = {name: value.shape for name, value in _buffers_of(model)}
    for name, value in saved.items():
        if name in present and present[name] != value.shape:
            raise _C.CheckpointError(
                f"{folder}: the buffer {name} has shape {tuple(value.shape)}, in this model "
                f"{tuple(present[name])}; load_module_strict=False leaves it as it is"
            )
    for name in sorted(present.keys() ^ saved.keys()):
        has, lacks = ("checkpoint", "model") if name in saved else ("model", "checkpoint")
        raise _C.CheckpointError(
            f"{folder}: the {has} has the buffer {name}, the {lacks} not; load_module_strict=False "
            "loads the others"
        )


def _load_buffers(model: nn.Module, saved: dict[str, torch.Tensor]) -> None:
    present = dict(model.named_buffers())
    for name, value in saved.items():
        if name in present and present[name].shape == value.shape:
            present[name].detach().copy_(value)
