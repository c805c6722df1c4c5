"""Saving and loading a ZeroEngine; the bytes on disk are docs/checkpoint_format.md's.

Besides model and optimizer a checkpoint keeps the program's client_state, counters, schedulers,
hyperparameters and buffers. These are pickled, as in DeepSpeed: load only what you trust.
"""

from __future__ import annotations

import base64
import io
import json
import os
import secrets
import shutil
import warnings
from typing import TYPE_CHECKING, Any

import torch

from zerorun import _C, shard_files
from zerorun.agreement import all_or_none

if TYPE_CHECKING:
    from zerorun.engine import ZeroEngine

__all__ = ["decode_payload", "load", "save"]

_LATEST = "latest"


def save(
    engine: ZeroEngine,
    directory: str | os.PathLike[str],
    tag: str | None,
    client_state: dict[str, Any] | None,
    save_latest: bool,
    exclude_frozen: bool,
) -> str:
    """Collective; returns the tag. An earlier checkpoint stays loadable until this is complete.

    Raises CheckpointError, ConfigError or IoError on every rank.
    """
    folder = os.fspath(directory)
    name = f"global_step{engine.global_steps}" if tag in (None, "") else str(tag)
    with all_or_none(engine.communicator, "save_checkpoint"):
        payload = _payload(engine, client_state)
        text = _encode(payload)
    if engine.optimizer is not None and engine.optimizer.rule.external:
        payload["shard_files"] = shard_files.save(engine, folder, name)
        text = _encode(payload)
    write = _save_core if save_latest else _save_core_aside
    try:
        write(engine, folder, name, text, exclude_frozen)
    except Exception:
        if payload["shard_files"] is not None:
            shard_files.discard(engine, folder, payload["shard_files"])
        raise
    with all_or_none(engine.communicator, "save_checkpoint"):
        if engine.communicator.rank == 0:
            shard_files.remove_stale(folder, name, payload["shard_files"])
    return name


def _payload(engine: ZeroEngine, client_state: dict[str, Any] | None) -> dict[str, Any]:
    optimizer, scheduler = engine.optimizer, engine.lr_scheduler
    return {
        "client_state": client_state or {},
        "counters": {"global_steps": engine.global_steps, "micro_steps": engine.micro_steps},
        "buffers": _buffers(engine.module),
        "optimizer": _optimizer_name(engine),
        "param_groups": None if optimizer is None else optimizer.state_dict()["param_groups"],
        "lr_scheduler": scheduler.state_dict() if hasattr(scheduler, "state_dict") else None,
        "shard_files": None,
    }


def _optimizer_name(engine: ZeroEngine) -> str | None:
    """What has to be the same for its states to be understood."""
    optimizer = engine.optimizer
    if optimizer is None:
        return None
    if optimizer.rule.external:
        return f"{type(optimizer.optimizer).__name__} of PyTorch"
    rule = optimizer.rule.name or engine.settings.optimizer.type
    # Adam and AdamW keep the same states.
    return f"zerorun's {'Adam' if rule == 'AdamW' else rule}"


def _save_core(engine: ZeroEngine, folder: str, tag: str, payload: str, frozen: bool) -> None:
    _C.save_checkpoint(engine.core, folder, tag, payload, frozen)


def _save_core_aside(engine: ZeroEngine, folder: str, tag: str, payload: str, frozen: bool) -> None:
    """Without a touch to `latest`: in a folder aside, from which the tag moves to its place.

    A tag that exists is there through a link, and replaced as every tag is. The folder's name is
    that of an unfinished save, which the next save removes should this one die.
    """
    number = torch.tensor([secrets.randbits(62)])
    engine.communicator.broadcast(number, 0, "name of the folder aside")
    aside = os.path.join(folder, f".{tag}.tmp-{number.item():016x}")
    final, made = os.path.join(folder, tag), os.path.join(aside, tag)
    is_rank_0 = engine.communicator.rank == 0
    try:
        with all_or_none(engine.communicator, "save_checkpoint"):
            if is_rank_0:
                os.makedirs(folder, exist_ok=True)
                os.mkdir(aside)
                if os.path.lexists(final):
                    os.symlink(os.path.join("..", tag), made)
        _save_core(engine, aside, tag, payload, frozen)
        with all_or_none(engine.communicator, "save_checkpoint"):
            if is_rank_0 and not os.path.islink(made):
                os.rename(made, final)
                _sync(folder)
    finally:
        if is_rank_0:
            shutil.rmtree(aside, ignore_errors=True)


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(
    engine: ZeroEngine,
    directory: str | os.PathLike[str],
    tag: str | None,
    *,
    strict: bool,
    optimizer_states: bool,
    lr_scheduler_states: bool,
) -> tuple[str | None, dict[str, Any] | None]:
    """Collective; (path, client_state), or (None, None) when there is no checkpoint.

    What is damaged or does not fit is a CheckpointError on every rank, and nothing has changed.
    """
    folder = os.fspath(directory)
    if tag is None and not os.path.exists(os.path.join(folder, _LATEST)):
        warnings.warn(f"no file '{_LATEST}' in {folder}: no checkpoint was loaded", stacklevel=3)
        return None, None
    name = "" if tag is None else str(tag)
    optimizer = engine.optimizer
    wants_states = optimizer is not None and optimizer_states
    pieces: shard_files.Pieces = {}
    with all_or_none(engine.communicator, "load_checkpoint"):
        payload = decode_payload(_C.SavedModel(folder, name).client_state)
        if wants_states:
            _check_optimizer(engine, payload, folder)
            if optimizer.rule.external:
                shard_files.verify(engine, folder, payload["shard_files"])
    if wants_states and optimizer.rule.external:
        with all_or_none(engine.communicator, "load_checkpoint"):
            pieces = shard_files.read(engine, folder, payload["shard_files"], strict)
    loaded = _C.load_checkpoint(engine.core, folder, name, strict)
    _load_buffers(engine.module, payload.get("buffers", {}))
    if wants_states:
        if payload.get("param_groups") is not None:
            optimizer.load_state_dict({"param_groups": payload["param_groups"]})
        if optimizer.rule.external:
            shard_files.restore(engine, pieces)
    elif optimizer is not None:
        engine.core.reset_optimizer()
        engine.core.refresh_from_masters()
    scheduler = engine.lr_scheduler
    if (
        lr_scheduler_states
        and payload.get("lr_scheduler")
        and hasattr(scheduler, "load_state_dict")
    ):
        scheduler.load_state_dict(payload["lr_scheduler"])
    counters = payload.get("counters", {})
    engine.global_steps = counters.get("global_steps", loaded.step)
    engine.micro_steps = counters.get("micro_steps", 0)
    return os.path.join(folder, loaded.tag), payload.get("client_state", {})


def _check_optimizer(engine: ZeroEngine, payload: dict[str, Any], folder: str) -> None:
    """That the saved states are this optimizer's; the core compares those of its own rules too."""
    own, saved = _optimizer_name(engine), payload.get("optimizer")
    external = engine.optimizer.rule.external
    if (saved is None and not external) or (
        saved == own and (not external or payload["shard_files"])
    ):
        groups, present = payload.get("param_groups"), engine.optimizer.param_groups
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


def _encode(payload: dict[str, Any]) -> str:
    stream = io.BytesIO()
    try:
        torch.save(payload, stream)
    except Exception as error:  # of whatever the program has put there
        raise _C.ConfigError(
            f"save_checkpoint: client_state or a scheduler's state cannot be pickled: {error}"
        ) from error
    return json.dumps({"torch": base64.b64encode(stream.getvalue()).decode()})


def decode_payload(text: str) -> dict[str, Any]:
    """What save() keeps besides the model. Other programs (the bundled train) save a client state
    of their own."""
    state = json.loads(text) if text else {}
    if "torch" not in state:
        return {"client_state": state}
    try:
        stream = io.BytesIO(base64.b64decode(state["torch"]))
        return torch.load(stream, map_location="cpu", weights_only=False)
    except Exception as error:  # a class that is not here, for one
        raise _C.CheckpointError(f"client_state of the checkpoint: {error}") from error


def _buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    state = model.state_dict(keep_vars=True)
    return {
        name: value.detach().to("cpu", copy=True)
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    }


def _load_buffers(model: torch.nn.Module, saved: dict[str, torch.Tensor]) -> None:
    present = dict(model.named_buffers())
    for name, value in saved.items():
        if name in present and present[name].shape == value.shape:
            present[name].detach().copy_(value)
