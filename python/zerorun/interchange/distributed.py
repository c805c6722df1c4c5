"""Folders of torch.distributed.checkpoint, as FSDP2's programs write them."""

import functools
import importlib
import io
import math
import os
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import torch

from zerorun import _C
from zerorun.interchange import untrusted
from zerorun.interchange.source import Piece, Source, SourceParameter
from zerorun.interchange.untrusted import SavedPart, read_bytes
from zerorun.optimizers.saved_values import whole_number

_METADATA = ".metadata"
_CHECKPOINT = "torch.distributed.checkpoint"
# All that the metadata of a checkpoint consists of.
_ALLOWED = {
    f"{_CHECKPOINT}.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    f"{_CHECKPOINT}.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch": {"Size", "device"} | {n for n, v in vars(torch).items() if isinstance(v, torch.dtype)},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "pathlib._local": {"Path", "PosixPath", "PurePosixPath"},
}
# Offsets, sizes, and what reads it.
Chunk = tuple[tuple[int, ...], tuple[int, ...], Callable[[], torch.Tensor]]
_STATE, _GROUPS, _STEP = "state", "param_groups", "step"


def is_distributed(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, _METADATA))


class _MetadataReader(pickle._Unpickler):  # type: ignore[misc, name-defined]
    """Knows the classes of metadata, and no others.

    Python's own: the one in C takes memory for as many objects as a file says that it will name.
    """

    def find_class(self, module: str, name: str) -> Any:
        if name not in _ALLOWED.get(module, ()):
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which is not of torch.distributed.checkpoint's "
                "metadata: reading a checkpoint runs no code that it names"
            )
        return super().find_class(module, name)


def _metadata(folder: str) -> Any:
    path = os.path.join(folder, _METADATA)
    try:
        with open(path, "rb") as file:
            return _MetadataReader(file).load()
    except Exception as error:  # pickles fail in many ways
        raise _C.CheckpointError(f"{path}: {error}") from error


def open_distributed(folder: str, *, optimizer_states: bool = True) -> Source:
    """Describes the checkpoint in `folder`. Raises CheckpointError."""
    return _Reader(folder, optimizer_states).source


class _Reader:
    """Sorts what a folder holds into parameters and their states."""

    def __init__(self, folder: str, optimizer_states: bool) -> None:
        self.source = Source(folder, "a folder of torch.distributed.checkpoint", only_names=True)
        self._folder = folder
        self._metadata = _metadata(folder)
        self._places = {
            (index.fqn, tuple(index.offset or ())): info
            for index, info in self._metadata.storage_data.items()
        }
        models: dict[tuple[str, ...], dict[str, str]] = {}
        states: list[tuple[str, str, str]] = []  # parameter, state, key
        groups: dict[tuple[Any, ...], str] = {}  # path below param_groups, key
        for key, entry in self._metadata.state_dict_metadata.items():
            path = tuple((self._metadata.planner_data or {}).get(key) or (key,))
            kind, rest = _sort(path)
            if kind == _STATE and hasattr(entry, "chunks"):
                states.append((*rest, key))
            elif kind == _GROUPS:
                groups[rest] = key
            elif kind is None and hasattr(entry, "chunks"):
                models.setdefault(path[:-1], {})[str(path[-1])] = key
        for name, key in self._only_model(models).items():
            self.source.parameters[name] = self._parameter(key)
        for name, *_ in states:
            if name in self.source.parameters:
                self.source.parameters[name].trained = True
        if optimizer_states and states:
            self._add_states(states, groups)

    def _only_model(self, models: dict[tuple[str, ...], dict[str, str]]) -> dict[str, str]:
        named = [root for root in models if root and root[-1] == "model"]
        roots = named or list(models)
        if len(roots) != 1:
            found = ", ".join(".".join(map(str, root)) or "(the top)" for root in roots) or "none"
            raise _C.CheckpointError(
                f"{self._folder}: got tensors below {found}; expected those of one model, or of "
                "one that is called 'model'"
            )
        return models[roots[0]]

    def _parameter(self, key: str) -> SourceParameter:
        entry = self._metadata.state_dict_metadata[key]
        dtype = getattr(entry.properties, "dtype", torch.float32)
        parts = len(entry.chunks)
        return SourceParameter(tuple(entry.size), self._pieces(key), dtype, parts=parts)

    def _pieces(self, key: str) -> list[Piece]:
        """A tensor's chunks as runs of its flattened elements."""
        entry = self._metadata.state_dict_metadata[key]
        size = tuple(entry.size)
        chunks: list[Chunk] = [
            (
                tuple(c.offsets),
                tuple(c.sizes),
                self._load(key, tuple(c.offsets), math.prod(c.sizes)),
            )
            for c in entry.chunks
            if math.prod(c.sizes) > 0
        ]
        return pieces_of(f"{self._folder}: {key}", size, entry.properties.dtype, chunks)

    def _load(
        self, key: str, offsets: tuple[int, ...], numel: int | None = None
    ) -> Callable[[], torch.Tensor]:
        """What reads an entry: a tensor of `numel` elements where these are given."""
        place = self._places.get((key, offsets))
        if place is None:
            raise _C.CheckpointError(f"{self._folder}: {key} at {offsets} is in no file")
        if getattr(place, "transform_descriptors", None):
            raise _C.CheckpointError(
                f"{self._folder}: {key} is stored with {place.transform_descriptors}, which is "
                "not supported"
            )
        where = os.path.join(self._folder, _METADATA)
        path = untrusted.inside(self._folder, place.relative_path, where)
        whole = type(place.offset) is int and type(place.length) is int and place.length >= 0
        if not whole or place.offset < 0 or place.offset + place.length > os.path.getsize(path):
            raise _C.CheckpointError(
                f"{path}: {os.path.getsize(path)} bytes, {key} has {place.length} from "
                f"{place.offset} on: the file is incomplete"
            )
        tensor = None
        if numel is not None:
            tensor = numel, self._metadata.state_dict_metadata[key].properties.dtype
        self.source.files.append(SavedPart(path, place.offset, place.length, tensor))
        return functools.partial(_stored, path, place.offset, place.length)

    def _add_states(
        self, states: list[tuple[str, str, str]], groups: dict[tuple[Any, ...], str]
    ) -> None:
        for name, state, key in states:
            parameter = self.source.parameters.get(name)
            if parameter is None:
                self.source.why_no_states = (
                    f"its optimizer states are of '{name}', which is no parameter of it: save "
                    "those of torch.distributed.checkpoint.state_dict.get_optimizer_state_dict, "
                    "which have the parameters' names"
                )
                return
            entry = self._metadata.state_dict_metadata[key]
            if entry.properties.dtype.is_complex:
                raise _C.CheckpointError(f"{self._folder}: {key} is {entry.properties.dtype}")
            if state == _STEP or tuple(entry.size) != parameter.shape:
                parameter.numbers[state] = self._load(key, (0,) * len(entry.size))()
            else:
                parameter.states[state] = self._pieces(key)
        self.source.param_groups = self._groups(groups)
        steps = [
            whole_number(p.numbers.get(_STEP, 0), f"step of {name}", self._folder)
            for name, p in self.source.parameters.items()
        ]
        self.source.global_steps = max(steps, default=0)

    def _groups(self, groups: dict[tuple[Any, ...], str]) -> list[dict[str, Any]]:
        """Hyperparameters by group, from a list that was flattened or stored as one."""
        made: dict[int, dict[str, Any]] = {}
        for path, key in groups.items():
            value = self._load(key, ())() if (key, ()) in self._places else None
            if len(path) == 0 and isinstance(value, list):
                made |= {number: dict(group) for number, group in enumerate(value)}
            elif len(path) == 1 and isinstance(value, dict):
                made[path[0]] = dict(value)
            elif len(path) == 2 and isinstance(path[0], int):
                made.setdefault(path[0], {})[path[1]] = value
        for number, group in made.items():
            for name in group.get("params", ()):
                if name in self.source.parameters:
                    self.source.parameters[name].group = number
        return [
            {name: value for name, value in made[number].items() if name != "params"}
            for number in sorted(made)
        ]


def pieces_of(
    what: str, size: tuple[int, ...], dtype: torch.dtype, chunks: list[Chunk]
) -> list[Piece]:
    """Chunks of a tensor as runs of its flattened elements. Raises CheckpointError for chunks that
    do not make it up."""
    row, numel = math.prod(size[1:]), math.prod(size)
    if all(sizes[1:] == size[1:] for _, sizes, _ in chunks):  # rows, as FSDP2 cuts
        pieces = [
            Piece((offsets[0] if offsets else 0) * row, math.prod(sizes), load)
            for offsets, sizes, load in chunks
        ]
    else:

        def assemble() -> torch.Tensor:
            full = torch.empty(size, dtype=dtype, device="cpu")
            for offsets, sizes, load in chunks:
                part = tuple(map(slice, offsets, map(sum, zip(offsets, sizes, strict=True))))
                full[part] = load()
            return full

        pieces = [Piece(0, numel, assemble)]
    held = sum(math.prod(sizes) for _, sizes, _ in chunks)
    if held != numel or SourceParameter(size, pieces).gaps():
        raise _C.CheckpointError(f"{what}: its chunks do not make it up")
    return pieces


def _sort(path: tuple[Any, ...]) -> tuple[str | None, tuple[Any, ...]]:
    """The place of an entry in an optimizer's state dict; None: it has none there."""
    if _GROUPS in path:
        return _GROUPS, path[path.index(_GROUPS) + 1 :]
    if _STATE in path and len(path) - path.index(_STATE) == 3:
        return _STATE, (str(path[-2]), str(path[-1]))
    last = str(path[-1])
    if last.startswith(f"{_STATE}."):  # flatten_optimizer_state_dict
        name, _, state = last.removeprefix(f"{_STATE}.").rpartition(".")
        return _STATE, (name, state)
    if last.startswith(f"{_GROUPS}."):
        return _GROUPS, ("flattened", last)
    return None, ()


@functools.lru_cache(maxsize=2)  # a chunk is read piece by piece
def _stored(path: str, offset: int, length: int) -> Any:
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read(length)
    return read_bytes(io.BytesIO(data), path)


# --- writing ---

_MODEL, _OPTIMIZER = "model", "optim"


def write_distributed(source: Source, folder: str | os.PathLike[str]) -> None:
    """Writes ``{"model": ..., "optim": ...}`` as get_state_dict names it, a tensor at a time.

    Without optimizer states only the model. Parameters are in fp32, from the masters, for
    ``dcp.load`` converts to what the program has. Raises CheckpointError, IoError.
    """
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")  # takes a second

    values: dict[str, tuple[SourceParameter, str | None]] = {}
    state: dict[str, Any] = {_MODEL: _model(source, values)}
    if source.param_groups is not None:
        state[_OPTIMIZER] = _optimizer(source, values)

    class Planner(dcp.DefaultSavePlanner):  # type: ignore[misc]
        """Reads a tensor when it is written."""

        def lookup_object(self, index: Any) -> Any:
            found = super().lookup_object(index)
            if not (isinstance(found, torch.Tensor) and found.is_meta):
                return found
            parameter, name = values[index.fqn]
            flat = torch.empty(parameter.numel, dtype=found.dtype)
            parameter.read(name, 0, flat)
            return flat.view(parameter.shape)

    try:
        writer = dcp.FileSystemWriter(os.fspath(folder), single_file_per_rank=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells that there is one process
            dcp.save(state, storage_writer=writer, planner=Planner(), no_dist=True)
    except OSError as error:
        raise _C.IoError(f"{os.fspath(folder)}: {error}") from error


def _model(source: Source, values: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Names with the placeholders of their tensors."""
    model: dict[str, torch.Tensor] = dict(source.buffers)
    names = {name: name for name in source.parameters} | source.aliases
    for name, owner in names.items():
        parameter = source.parameters.get(owner)
        if parameter is not None:
            model[name] = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
            values[f"{_MODEL}.{name}"] = (parameter, None)
    return model


def _optimizer(source: Source, values: dict[str, Any]) -> dict[str, Any]:
    states: dict[str, Any] = {}
    groups = [dict(group) | {"params": []} for group in source.param_groups or []]
    for name, parameter in source.parameters.items():
        if not parameter.trained:
            continue
        groups[parameter.group]["params"].append(name)
        states[name] = {
            key: value if isinstance(value, torch.Tensor) else torch.tensor(float(value))
            for key, value in parameter.numbers.items()
        }
        for key in parameter.states:
            states[name][key] = torch.empty(parameter.shape, device="meta")
            values[f"{_OPTIMIZER}.state.{name}.{key}"] = (parameter, key)
    return {"state": states, "param_groups": groups}
