"""Models in Hugging Face's files: safetensors or torch.save's, one, or several with an index."""

import functools
import importlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from zerorun import _C
from zerorun.interchange import untrusted
from zerorun.interchange.distributed import Chunk, pieces_of
from zerorun.interchange.source import Piece, Source, SourceParameter
from zerorun.interchange.untrusted import SavedPart
from zerorun.model.tensors import SAFETENSORS_DTYPES
from zerorun.optimizers.saved_values import whole_number

# In the order of preference.
_NAMES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "diffusion_pytorch_model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors",
)
_SAFETENSORS = ".safetensors"
_MAX_INDEX_NBYTES = 256 << 20


def is_hugging_face(path: str) -> bool:
    return _entry_of(path) is not None


def _entry_of(path: str) -> str | None:
    """The file to begin with: an index, or the model."""
    if os.path.isfile(path):
        return path if path.endswith((_SAFETENSORS, ".bin", ".index.json")) else None
    names = (os.path.join(path, name) for name in _NAMES)
    found = next((name for name in names if untrusted.is_there(name)), None)
    if found is not None and not os.path.isfile(found):
        raise _C.CheckpointError(f"{found}: expected a file, or a link to one")
    return found


class Weights(Mapping[str, torch.Tensor]):
    """A mapping from names to the tensors of a model on disk; each is read when it is accessed.

    For ``zerorun.shard(weights=)``, which holds one tensor in memory at a time. Raises
    CheckpointError for missing or damaged files.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """`path`: a folder in Hugging Face's layout, or one of its files."""
        entry = _entry_of(os.fspath(path))
        if entry is None:
            raise _C.CheckpointError(
                f"{os.fspath(path)}: none of {', '.join(_NAMES)} is there, and it is not one"
            )
        self.entry = entry
        self._files = _index(entry) if entry.endswith(".index.json") else {}
        if not self._files:
            self._files = dict.fromkeys(keys_of(entry), entry)
        have = {file: set(keys_of(file)) for file in set(self._files.values())}
        for name, file in self._files.items():
            if name not in have[file]:
                raise _C.CheckpointError(f"{file} has no tensor {name}, which {entry} says it has")

    def __getitem__(self, name: str) -> torch.Tensor:
        return tensor_of(self._files[name], name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Without reading the tensor."""
        path = self._files[name]
        if path.endswith(_SAFETENSORS):
            return tuple(open_file(path).get_slice(name).get_shape())
        return tuple(self[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        """Without reading the tensor."""
        path = self._files[name]
        return dtype_of(path, name) if path.endswith(_SAFETENSORS) else self[name].dtype


def dtype_of(path: str, name: str) -> torch.dtype:
    """Of a tensor of a safetensors file, without reading it."""
    spelled = open_file(path).get_slice(name).get_dtype()
    if spelled not in SAFETENSORS_DTYPES:
        raise _C.CheckpointError(f"{path}: {name} is of {spelled}, which torch does not have")
    return SAFETENSORS_DTYPES[spelled]


def _index(path: str) -> dict[str, str]:
    folder = os.path.dirname(path)
    try:
        if os.path.getsize(path) > _MAX_INDEX_NBYTES:
            raise _C.CheckpointError(f"{path}: larger than {_MAX_INDEX_NBYTES} bytes")
        with open(path, encoding="utf-8") as file:
            table = json.load(file)["weight_map"]
        return {name: untrusted.inside(folder, where, path) for name, where in table.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, _C.Error):
            raise
        raise _C.CheckpointError(
            f"{path}: {error!r}; expected JSON with the file of each tensor in 'weight_map'"
        ) from error


@functools.lru_cache(maxsize=64)
def _opened(path: str, _state: tuple[int, int]) -> Any:
    if not path.endswith(_SAFETENSORS):
        return _flat(untrusted.read(path), path)
    try:
        return importlib.import_module("safetensors").safe_open(path, "pt")
    except ImportError as error:
        raise _C.ConfigError(f"{path} needs the package safetensors ({error})") from None
    except Exception as error:  # SafetensorError, which is its own
        raise _C.CheckpointError(f"{path}: {error}") from error


def open_file(path: str) -> Any:
    """The open file, as long as it is the same one."""
    found = os.stat(path)
    return _opened(path, (found.st_mtime_ns, found.st_ino))


def _flat(content: Any, path: str) -> dict[str, torch.Tensor]:
    tensors = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(tensors, dict):
        raise _C.CheckpointError(
            f"{path}: got {type(content).__name__}, expected a state dict: names and tensors"
        )
    found = {name: value for name, value in tensors.items() if isinstance(value, torch.Tensor)}
    for name, value in found.items():
        if not isinstance(name, str) or not untrusted.is_readable(value):
            raise _C.CheckpointError(
                f"{path}: {name!r} is {value.layout} of {value.dtype}, expected names with dense "
                "tensors"
            )
    return found


def keys_of(path: str) -> list[str]:
    return list(open_file(path).keys())


def tensor_of(path: str, name: str) -> torch.Tensor:
    opened = open_file(path)
    return opened.get_tensor(name) if path.endswith(_SAFETENSORS) else opened[name]


def open_hugging_face(path: str, *, optimizer_states: bool = True) -> Source:
    """Describes a model, which has no optimizer states."""
    del optimizer_states
    weights = Weights(path)
    source = Source(path, f"a model ({os.path.basename(weights.entry)})", is_model=True)
    source.only_names = True
    files = sorted(set(weights._files.values()))
    source.files = [SavedPart(name) for name in files if not name.endswith(_SAFETENSORS)]
    for name in weights:
        shape = weights.shape(name)
        piece = Piece(0, torch.Size(shape).numel(), functools.partial(weights.__getitem__, name))
        source.parameters[name] = SourceParameter(shape, [piece], weights.dtype(name))
    return source


# --- models that each rank has saved its part of: transformers' sharded checkpoints ---
#
# `save_pretrained(..., distributed_checkpoint=True)` of a model loaded with `distributed_config`
# writes them, and PyTorch's HuggingFaceStorageWriter(save_distributed=True), which it calls.

_NAME = re.compile(r"shard-(\d{5})-model-\d{5}-of-\d{5}\.safetensors")
_PLACES = "DCP_SHARDING_INFO"  # the key of a file's metadata with the offsets of its tensors


def is_sharded_safetensors(folder: str) -> bool:
    return os.path.isdir(folder) and any(map(_NAME.fullmatch, os.listdir(folder)))


def open_sharded_safetensors(folder: str, *, optimizer_states: bool = True) -> Source:
    """Describes a model, which has no optimizer states here. Raises CheckpointError."""
    del optimizer_states
    source = Source(folder, "a model in the files of its ranks", is_model=True, only_names=True)
    found = [match for match in map(_NAME.fullmatch, sorted(os.listdir(folder))) if match]
    ranks = {int(match.group(1)) for match in found}
    missing = set(range(1, max(ranks) + 1)) - ranks
    if missing:
        raise _C.CheckpointError(
            f"{folder}: the file of shard {min(missing)} is missing, of {max(ranks)} or more"
        )
    chunks: dict[str, list[Chunk]] = {}
    dtypes: dict[str, torch.dtype] = {}
    for path in (os.path.join(folder, match.group()) for match in found):
        places = _places(path)
        for name in keys_of(path):
            chunk = _chunk(path, name, places)
            others = chunks.setdefault(name, [])
            if all(chunk[0] != other[0] for other in others):  # else a copy of a replica
                others.append(chunk)
            dtypes[name] = dtype_of(path, name)
    for name, parts in chunks.items():
        ends = [[at + size for at, size in zip(*part[:2], strict=True)] for part in parts]
        size = tuple(map(max, zip(*ends, strict=True)))
        pieces = pieces_of(f"{folder}: {name}", size, dtypes[name], parts)
        source.parameters[name] = SourceParameter(size, pieces, dtypes[name])
    return source


def _places(path: str) -> dict[str, Any]:
    text = (open_file(path).metadata() or {}).get(_PLACES)
    if text is None:
        raise _C.CheckpointError(
            f"{path}: no {_PLACES} in its metadata, which says where its tensors belong"
        )
    return dict(json.loads(text))


def _chunk(path: str, name: str, places: dict[str, Any]) -> Chunk:
    shape = tuple(open_file(path).get_slice(name).get_shape())
    given = places[name]["saved_offsets"]
    offsets = tuple(whole_number(at, f"offset of {name}", path) for at in given)
    if len(offsets) != len(shape):
        raise _C.CheckpointError(
            f"{path}: {name} has {len(shape)} dimensions, but {len(offsets)} offsets"
        )
    return offsets, shape, functools.partial(tensor_of, path, name)
