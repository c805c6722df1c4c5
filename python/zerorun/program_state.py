"""The text that a checkpoint keeps for the program, beside the model.

It has two parts. `data` (buffers, counters, names) holds tensors and plain values, and reading it
runs no code. `objects` (client_state, a scheduler's state, parameter groups) are pickled and may be
of any class: reading them runs the code that they name, so only a load of the whole training does.
docs/checkpoint_format.md specifies both.
"""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import torch

from zerorun import _C

__all__ = ["decode", "decode_objects", "encode", "encode_objects"]

_VERSION = 2
_EARLIER = "torch"  # the only member in version 1, which had one pickle for both parts


def encode_objects(objects: dict[str, Any]) -> bytes:
    """Raises ConfigError for objects that cannot be pickled."""
    stream = io.BytesIO()
    try:
        torch.save(objects, stream)
    except Exception as error:  # of whatever the program has put there
        raise _C.ConfigError(
            f"save_checkpoint: client_state or a scheduler's state cannot be pickled: {error}"
        ) from error
    return stream.getvalue()


def encode(data: dict[str, Any], objects: bytes) -> str:
    """The text of both parts."""
    stream = io.BytesIO()
    torch.save(data, stream)
    parts = {"data": stream.getvalue(), "objects": objects}
    encoded = {name: base64.b64encode(part).decode() for name, part in parts.items()}
    return json.dumps({"zerorun_python": _VERSION, **encoded})


def decode(text: str) -> dict[str, Any]:
    """The data; empty for the text of another program. Runs no code. Raises CheckpointError."""
    state = _read(text)
    return {} if state is None else _load(state, "data", weights_only=True)


def decode_objects(text: str) -> dict[str, Any]:
    """The objects; other programs (the bundled train) have a client_state only. Runs the code that
    the pickle names. Raises CheckpointError."""
    state = _read(text)
    if state is None:
        return {"client_state": json.loads(text) if text else {}}
    return _load(state, "objects", weights_only=False)


def _read(text: str) -> dict[str, Any] | None:
    state = json.loads(text) if text else {}
    if not isinstance(state, dict) or not {_EARLIER, "zerorun_python"} & state.keys():
        return None
    version = state.get("zerorun_python", 1)
    if version != _VERSION:
        why = ", whose buffers cannot be read without running code" if version == 1 else ""
        raise _C.CheckpointError(
            f"the program's part of the checkpoint has version {version}{why}; expected "
            f"{_VERSION}: load it with the zerorun that saved it, and save the model there with "
            "save_16bit_model"
        )
    return state


def _load(state: dict[str, Any], part: str, *, weights_only: bool) -> dict[str, Any]:
    try:
        stream = io.BytesIO(base64.b64decode(state[part], validate=True))
        return torch.load(stream, map_location="cpu", weights_only=weights_only)
    except Exception as error:  # a class that is not here, for one
        message = f"the program's part of the checkpoint, {part}: {error}"
        raise _C.CheckpointError(message) from error
