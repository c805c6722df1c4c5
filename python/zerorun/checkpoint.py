"""Saving and loading a ZeroEngine; the bytes on disk are docs/checkpoint_format.md's.

Besides model and optimizer a checkpoint keeps the program's client_state, counters, schedulers,
hyperparameters and buffers. These are pickled, as in DeepSpeed: load only what you trust.
"""

from __future__ import annotations

import base64
import io
import json
import os
import warnings
from typing import TYPE_CHECKING, Any

import torch

from zerorun import _C, shard_files

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
    """Collective; returns the tag. An earlier checkpoint stays loadable until this is complete."""
    folder = os.fspath(directory)
    name = f"global_step{engine.global_steps}" if tag is None else str(tag)
    latest = os.path.join(folder, _LATEST)
    before = _read(latest)
    payload = {
        "client_state": client_state or {},
        "counters": {"global_steps": engine.global_steps, "micro_steps": engine.micro_steps},
        "buffers": _buffers(engine.module),
        "param_groups": None,
        "lr_scheduler": None,
        "shard_files": None,
    }
    if engine.optimizer is not None:
        payload["param_groups"] = engine.optimizer.state_dict()["param_groups"]
        if engine.optimizer.rule.external:
            payload["shard_files"] = shard_files.save(engine, folder, name)
    if hasattr(engine.lr_scheduler, "state_dict"):
        payload["lr_scheduler"] = engine.lr_scheduler.state_dict()
    _C.save_checkpoint(engine.core, folder, name, _encode(payload), exclude_frozen)
    if engine.communicator.rank == 0:
        if not save_latest:
            _restore(latest, before)
        shard_files.remove_stale(folder, name, payload["shard_files"])
    engine.communicator.barrier("checkpoint saved")
    return name


def load(
    engine: ZeroEngine,
    directory: str | os.PathLike[str],
    tag: str | None,
    *,
    optimizer_states: bool,
    lr_scheduler_states: bool,
) -> tuple[str | None, dict[str, Any] | None]:
    """Collective; (path, client_state), or (None, None) when there is no checkpoint."""
    folder = os.fspath(directory)
    if tag is None and not os.path.exists(os.path.join(folder, _LATEST)):
        warnings.warn(f"no file '{_LATEST}' in {folder}: no checkpoint was loaded", stacklevel=3)
        return None, None
    loaded = _C.load_checkpoint(engine.core, folder, "" if tag is None else str(tag))
    payload = decode_payload(loaded.client_state)
    _load_buffers(engine.module, payload.get("buffers", {}))
    optimizer = engine.optimizer
    if optimizer is not None and optimizer_states:
        if payload.get("param_groups") is not None:
            optimizer.load_state_dict({"param_groups": payload["param_groups"]})
        if optimizer.rule.external and payload.get("shard_files"):
            shard_files.load(engine, os.path.join(folder, payload["shard_files"]))
    if optimizer is not None and not optimizer_states:
        engine.core.reset_optimizer()
        engine.core.publish_masters()
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


def _encode(payload: dict[str, Any]) -> str:
    stream = io.BytesIO()
    torch.save(payload, stream)
    return json.dumps({"torch": base64.b64encode(stream.getvalue()).decode()})


def decode_payload(text: str) -> dict[str, Any]:
    """What save() keeps besides the model. Other programs (the bundled train) save a client state
    of their own."""
    state = json.loads(text) if text else {}
    if "torch" not in state:
        return {"client_state": state}
    stream = io.BytesIO(base64.b64decode(state["torch"]))
    return torch.load(stream, map_location="cpu", weights_only=False)


def _buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    state = model.state_dict(keep_vars=True)
    return {
        name: value.detach().clone()
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    }


def _load_buffers(model: torch.nn.Module, saved: dict[str, torch.Tensor]) -> None:
    present = dict(model.named_buffers())
    for name, value in saved.items():
        if name in present and present[name].shape == value.shape:
            present[name].detach().copy_(value)


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def _restore(path: str, text: str | None) -> None:
    if text is None:
        os.unlink(path)
        return
    temporary = f"{path}.restored"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)
