"""The text that a checkpoint keeps for the program, beside the model: JSON.

Reading it runs no code. What JSON has no form for may be pickled within, if the configuration says
so; docs/checkpoint_format.md specifies the text.
"""

import argparse
import base64
import collections
import ctypes
import importlib
import json
import math
import pathlib
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from zerorun import _C

_VERSION = 3
_OBJECTS = "objects"
_NUMBERS = ("b", "i", "u", "f", "c")  # numpy's kinds of dtypes


def encode(data: dict[str, Any], objects: dict[str, Any], *, allow_pickle: bool) -> str:
    """The text of both parts: `data` of the package, and `objects` of the program, whose values may
    be of any class that JSON has a form for here. Raises ConfigError naming what has none."""
    parts = {
        name: encode_value(value, name, allow_pickle=allow_pickle)
        for name, value in objects.items()
    }
    plain = {name: encode_value(value, name, allow_pickle=False) for name, value in data.items()}
    return json.dumps({"zerorun_python": _VERSION, **plain, _OBJECTS: parts}, allow_nan=False)


def has_pickle(text: str) -> bool:
    """True if a load has to be allowed to unpickle."""
    return _PICKLE_BEGIN in text  # within a string its quotes are escaped


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
        return decode_value(value, allow_pickle=allow_pickle)
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


# --- values as JSON, and back ---
#
# JSON holds None, numbers, text, lists and dictionaries with keys of text as they are. Other values
# are an object with one member whose name begins with "$", such as {"$tuple": [1, 2]};
# docs/checkpoint_format.md lists them.

_PICKLE = "$pickle"
_PICKLE_BEGIN = f'{{"{_PICKLE}": '  # of one in the text of json.dumps
_CONTAINERS: dict[type, str] = {
    list: "$list",
    tuple: "$tuple",
    set: "$set",
    frozenset: "$frozenset",
    collections.deque: "$deque",
    torch.Size: "$size",
}
_MAPPINGS: dict[type, str] = {
    dict: "$dict",
    collections.OrderedDict: "$ordered",
    argparse.Namespace: "$namespace",
    types.SimpleNamespace: "$simplenamespace",
}


def encode_value(value: Any, where: str, *, allow_pickle: bool) -> Any:
    """The value as JSON's own types. `where` names it in errors.

    What has no form here is pickled if that is allowed, else a ConfigError that names the value.
    """
    kind = type(value)
    if kind in (type(None), bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if kind in _CONTAINERS:
        items = [
            encode_value(v, f"{where}[{i}]", allow_pickle=allow_pickle) for i, v in enumerate(value)
        ]
        most = value.maxlen if kind is collections.deque else None
        form = {_CONTAINERS[kind]: items} if most is None else {"$bounded": [most, items]}
        return items if kind is list else form
    if kind in _MAPPINGS:
        return _encode_mapping(value, where, allow_pickle=allow_pickle)
    encoded = _encode_leaf(value)
    if encoded is not None:
        return encoded
    if not allow_pickle:
        raise _C.ConfigError(
            f"save_checkpoint: {where} is of {kind.__module__}.{kind.__qualname__}, which JSON has "
            "no form for: save plain values and tensors (state_dict(), vars()), or set "
            '"checkpoint": {"pickle_client_state": true}, and a load will run the pickle\'s code'
        )
    try:
        return {_PICKLE: _text(pickle.dumps(value))}
    except Exception as error:  # of whatever the program has put there
        raise _C.ConfigError(f"save_checkpoint: {where} cannot be pickled: {error}") from error


def _encode_mapping(value: Any, where: str, *, allow_pickle: bool) -> Any:
    kind = type(value)
    items = value.items() if isinstance(value, dict) else vars(value).items()
    plain = kind is dict and all(type(k) is str and not k.startswith("$") for k, _ in items)
    values = [encode_value(v, f"{where}[{k!r}]", allow_pickle=allow_pickle) for k, v in items]
    if plain:
        return dict(zip(value, values, strict=True))
    keys = [encode_value(k, f"a key of {where}", allow_pickle=allow_pickle) for k, _ in items]
    return {_MAPPINGS[kind]: [list(pair) for pair in zip(keys, values, strict=True)]}


def _encode_leaf(value: Any) -> dict[str, Any] | None:  # noqa: PLR0911 - one for each kind
    if type(value) in (bytes, bytearray):
        return {f"${type(value).__name__}": _text(value)}
    if type(value) is complex:
        return {"$complex": [str(value.real), str(value.imag)]}
    if isinstance(value, torch.dtype | torch.device):
        return {"$torch": [type(value).__name__, str(value).removeprefix("torch.")]}
    if isinstance(value, pathlib.PurePath):
        return {"$path": str(value)}
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return _encode_tensor(value.detach())
    numpy: Any = sys.modules.get("numpy")  # PyTorch does not need it
    if numpy is None or getattr(getattr(value, "dtype", None), "kind", "") not in _NUMBERS:
        return None
    if type(value) is numpy.ndarray:
        data = numpy.ascontiguousarray(value)
        return {"$ndarray": [data.dtype.str, list(value.shape), _text(data.tobytes())]}
    if isinstance(value, numpy.generic):
        return {"$numpy": [value.dtype.str, _text(value.tobytes())]}
    return None


def _encode_tensor(value: torch.Tensor) -> dict[str, Any] | None:
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        return None
    flat = value.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    data = ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.numel() else b""
    return {"$tensor": [str(value.dtype).removeprefix("torch."), list(value.shape), _text(data)]}


def decode_value(value: Any, *, allow_pickle: bool) -> Any:
    """The value that `encode_value` was given. Tensors are on the CPU.

    Raises CheckpointError for what it did not write, and for a pickle unless those are allowed.
    """
    if isinstance(value, list):
        return [decode_value(item, allow_pickle=allow_pickle) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not next(iter(value)).startswith("$"):
        return {k: decode_value(v, allow_pickle=allow_pickle) for k, v in value.items()}
    [(tag, content)] = value.items()
    if tag == _PICKLE and not allow_pickle:
        raise _C.CheckpointError(
            "the client_state or a schedule of the checkpoint has a pickle, which can run any "
            'code: if you trust it, set "checkpoint": {"pickle_client_state": true} to load it'
        )
    reader = _READERS.get(tag)
    if reader is None:
        raise _C.CheckpointError(
            f"the program's part of the checkpoint has a value of the kind {tag!r}, which this "
            "version does not know"
        )
    try:
        return reader(content, allow_pickle)
    except _C.CheckpointError:
        raise
    except Exception as error:  # of damaged content, or a pickle's own
        message = f"the program's part of the checkpoint, {tag}: {error}"
        raise _C.CheckpointError(message) from error


def _pairs(content: Any, allow_pickle: bool) -> dict[Any, Any]:
    return {
        decode_value(k, allow_pickle=allow_pickle): decode_value(v, allow_pickle=allow_pickle)
        for k, v in content
    }


def _decode_tensor(content: Any) -> torch.Tensor:
    dtype, shape, data = content
    kind = getattr(torch, dtype)
    if not isinstance(kind, torch.dtype):
        raise TypeError(f"torch.{dtype} is no dtype")
    if not data:
        return torch.empty(0, dtype=kind, device="cpu").reshape(shape)
    return torch.frombuffer(bytearray(_data(data)), dtype=kind).reshape(shape)


def _decode_torch_name(content: Any) -> Any:
    kind, name = content
    if kind == "device":
        return torch.device(name)
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch.{name} is no dtype")
    return dtype


def _decode_array(dtype: str, data: bytes | bytearray) -> Any:
    numpy = importlib.import_module("numpy")  # without it an error of that load
    if numpy.dtype(dtype).kind not in _NUMBERS:
        raise TypeError(f"numpy's dtype {dtype} is not of numbers")
    return numpy.frombuffer(data, dtype)


def _text(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()


def _data(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_READERS: dict[str, Callable[[Any, bool], Any]] = {
    "$float": lambda content, _: float(content),
    "$complex": lambda content, _: complex(float(content[0]), float(content[1])),
    "$bytes": lambda content, _: _data(content),
    "$bytearray": lambda content, _: bytearray(_data(content)),
    "$torch": lambda content, _: _decode_torch_name(content),
    "$path": lambda content, _: pathlib.Path(content),
    "$tensor": lambda content, _: _decode_tensor(content),
    "$ndarray": lambda content, _: _decode_array(content[0], bytearray(_data(content[2]))).reshape(
        content[1]
    ),
    "$numpy": lambda content, _: _decode_array(content[0], _data(content[1]))[0],
    "$bounded": lambda content, p: collections.deque(
        decode_value(content[1], allow_pickle=p), content[0]
    ),
    "$dict": _pairs,
    "$ordered": lambda content, p: collections.OrderedDict(_pairs(content, p)),
    "$namespace": lambda content, p: argparse.Namespace(**_pairs(content, p)),
    "$simplenamespace": lambda content, p: types.SimpleNamespace(**_pairs(content, p)),
    _PICKLE: lambda content, _: pickle.loads(_data(content)),  # noqa: S301 - allowed by the caller
} | {
    tag: lambda content, p, kind=kind: kind(decode_value(item, allow_pickle=p) for item in content)
    for kind, tag in _CONTAINERS.items()
}
