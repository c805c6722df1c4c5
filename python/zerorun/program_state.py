"""The text that a checkpoint keeps for the program, beside the model: JSON.

Reading it runs no code. What JSON has no form for may be pickled within, if the configuration says
so; docs/checkpoint_format.md specifies the text.
"""

from __future__ import annotations

import json
from typing import Any

from zerorun import _C, plain_values

_VERSION = 3
_OBJECTS = "objects"


def encode(data: dict[str, Any], objects: dict[str, Any], *, allow_pickle: bool) -> str:
    """The text of both parts: `data` of the package, and `objects` of the program, whose values may
    be of any class that plain_values has a form for. Raises ConfigError naming what has none."""
    parts = {
        name: plain_values.encode(value, name, allow_pickle=allow_pickle)
        for name, value in objects.items()
    }
    plain = {
        name: plain_values.encode(value, name, allow_pickle=False) for name, value in data.items()
    }
    return json.dumps({"zerorun_python": _VERSION, **plain, _OBJECTS: parts}, allow_nan=False)


def has_pickle(text: str) -> bool:
    """True if a load has to be allowed to unpickle."""
    return plain_values.PICKLE_BEGIN in text  # within a string its quotes are escaped


def decode(text: str) -> dict[str, Any]:
    """The data; empty for the text of another program. Raises CheckpointError."""
    state = _read(text) or {}
    return {
        name: _value(value, allow_pickle=False) for name, value in state.items() if name != _OBJECTS
    }


def decode_objects(text: str, *, allow_pickle: bool) -> dict[str, Any]:
    """The objects; other programs (the bundled train) have a client_state only.

    Raises CheckpointError for a pickle among them, unless those are allowed.
    """
    state = _read(text)
    if state is None:
        return {"client_state": json.loads(text) if text else {}}
    objects = state.get(_OBJECTS)
    if not isinstance(objects, dict):
        raise _C.CheckpointError("the program's part of the checkpoint has no 'objects'")
    return {name: _value(value, allow_pickle=allow_pickle) for name, value in objects.items()}


def _value(value: Any, *, allow_pickle: bool) -> Any:
    try:
        return plain_values.decode(value, allow_pickle=allow_pickle)
    except RecursionError as error:
        message = f"the program's part of the checkpoint is nested too deeply: {error}"
        raise _C.CheckpointError(message) from error


def _read(text: str) -> dict[str, Any] | None:
    try:
        state = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise _C.CheckpointError(f"the program's part of the checkpoint: {error}") from error
    if not isinstance(state, dict) or "zerorun_python" not in state:
        return None
    version = state["zerorun_python"]
    if version != _VERSION:
        raise _C.CheckpointError(
            f"the program's part of the checkpoint has version {version}; expected {_VERSION}: "
            "load it with the zerorun that saved it, and save the model there with "
            "save_16bit_model"
        )
    return state
