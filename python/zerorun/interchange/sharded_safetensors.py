"""A model that each rank has saved its part of as safetensors: transformers' sharded checkpoints.

`save_pretrained(..., distributed_checkpoint=True)` of a model loaded with `distributed_config`, and
PyTorch's HuggingFaceStorageWriter(save_distributed=True), which it calls, write them.
"""

from __future__ import annotations

import functools
import json
import os
import re
from typing import Any

import torch

from zerorun import _C
from zerorun.interchange.distributed import Chunk, pieces_of
from zerorun.interchange.hugging_face import dtype_of, keys_of, open_file, tensor_of
from zerorun.interchange.source import Source, SourceParameter
from zerorun.optimizers.saved_values import whole_number

__all__ = ["is_sharded_safetensors", "open_sharded_safetensors"]

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
