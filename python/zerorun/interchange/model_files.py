"""Writing a model as Hugging Face does, in one file or several with an index, piece by piece."""

import ctypes
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from zerorun import _C
from zerorun.interchange.source import Source, SourceParameter
from zerorun.model.tensors import SAFETENSORS_NAMES
from zerorun.whole_file import replacing

Progress = Callable[[int, int], None]  # bytes that are done, of so many

_CHUNK_NUMEL = 1 << 22
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}


def nbytes_of(size: str | int) -> int:
    """Bytes of a number, or of text as "5GB". Raises ConfigError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*((?:[KMG]I?)?)B?", str(size).strip().upper())
    nbytes = 0 if match is None else int(float(match[1]) * _UNITS[match[2]])
    if nbytes < 1:
        raise _C.ConfigError(f"size of a file: got {size!r}, expected bytes, or text as '5GB'")
    return nbytes


@dataclass
class ModelTensor:
    """One tensor of the model: a parameter in the dtype that is asked for, or a buffer."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    source: SourceParameter | torch.Tensor

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    def chunks(self) -> Iterator[torch.Tensor]:
        """The elements in order, flat."""
        for begin in range(0, self.numel, _CHUNK_NUMEL):
            part = torch.empty(min(_CHUNK_NUMEL, self.numel - begin), dtype=self.dtype)
            if isinstance(self.source, torch.Tensor):
                part.copy_(self.source.reshape(-1)[begin : begin + part.numel()])
            else:
                self.source.read(None, begin, part)
            yield part

    def contiguous(self) -> torch.Tensor:
        """The tensor."""
        full = torch.empty(self.numel, dtype=self.dtype)
        begin = 0
        for part in self.chunks():
            full[begin : begin + part.numel()] = part
            begin += part.numel()
        return full.view(self.shape)


def model_tensors(
    source: Source, dtype: torch.dtype | None = torch.float32, *, exclude_frozen: bool = False
) -> dict[str, ModelTensor]:
    """The entries of a state dict of the model, unread; tied names share one.

    `dtype`: of floating-point tensors of 16 bits and more; None: as they are stored. Eight bits
    mean something with their scales only.
    """
    tensors: dict[str, ModelTensor] = {}
    for name, parameter in source.parameters.items():
        if exclude_frozen and not parameter.trained:
            continue
        own = parameter.dtype
        kept = own if dtype is None or parameter.exact or not _can_be_cast(own) else dtype
        tensors[name] = ModelTensor(name, parameter.shape, kept, parameter)
    for name, buffer in source.buffers.items():
        own = buffer.dtype
        kept = own if dtype is None or not _can_be_cast(own) else dtype
        tensors[name] = ModelTensor(name, tuple(buffer.shape), kept, buffer)
    for alias, owner in source.aliases.items():
        if owner in tensors:
            tensors[alias] = tensors[owner]
    return tensors


def _can_be_cast(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize > 1


def write_model(
    tensors: dict[str, ModelTensor],
    output: str | os.PathLike[str],
    *,
    max_nbytes: int | None = None,
    safetensors: bool = True,
    progress: Progress = lambda _done, _total: None,
) -> list[str]:
    """Writes files of at most `max_nbytes` (one tensor may be larger) into a folder; their paths.

    safetensors files hold a tied tensor under its first name. Each file is complete or not there.
    `progress` learns how many bytes of how many are done. Raises ConfigError where the folder has
    files of another model, or of this one in other parts.
    """
    pattern = "model{}.safetensors" if safetensors else "pytorch_model{}.bin"
    folder = os.fspath(output)
    os.makedirs(folder, exist_ok=True)
    if safetensors:
        tensors = {name: value for name, value in tensors.items() if value.name == name}
    parts = _split(tensors, max_nbytes)
    total = sum({value.name: value.nbytes for value in tensors.values()}.values())
    done = 0

    def add(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    several = len(parts) > 1
    suffixes = [f"-{n + 1:05d}-of-{len(parts):05d}" for n in range(len(parts))] if several else [""]
    names = [pattern.format(suffix) for suffix in suffixes]
    index = pattern.format("") + ".index.json"
    _check_others(folder, pattern, {*names, index} if several else {*names})
    paths: list[str] = []
    places: dict[str, str] = {}
    for name, part in zip(names, parts, strict=True):
        paths.append(os.path.join(folder, name))
        places |= dict.fromkeys(part, name)
        with replacing(paths[-1]) as file:
            if safetensors:
                _write_safetensors(file, part, add)
            else:
                torch.save(_tensors_of(part, add), file)
    if several:
        content = {"metadata": {"total_size": total}, "weight_map": places}
        paths.append(os.path.join(folder, index))
        with replacing(paths[-1]) as file:
            file.write(json.dumps(content, indent=2, sort_keys=True).encode() + b"\n")
    return paths


def _check_others(folder: str, pattern: str, names: set[str]) -> None:
    """Raises ConfigError for model files that would stay beside the new ones: loaders might take
    them instead."""
    first, last = map(re.escape, pattern.split("{}"))
    of_a_model = re.compile(rf"{first}(-\d+-of-\d+)?{last}(\.index\.json)?")
    others = sorted({n for n in os.listdir(folder) if of_a_model.fullmatch(n)} - names)
    if others:
        raise _C.ConfigError(
            f"{folder}: has {others[0]}, which would not be replaced, and which loaders might take "
            "instead of the new files: remove it, or name another folder"
        )


def _split(tensors: dict[str, ModelTensor], max_nbytes: int | None) -> list[dict[str, ModelTensor]]:
    """Files in the order of the tensors; tied names are in one file."""
    parts: list[dict[str, ModelTensor]] = [{}]
    part_of: dict[str, dict[str, ModelTensor]] = {}
    size = 0
    for name, value in tensors.items():
        if value.name in part_of:
            part_of[value.name][name] = value
            continue
        if parts[-1] and max_nbytes is not None and size + value.nbytes > max_nbytes:
            parts.append({})
            size = 0
        parts[-1][name] = value
        part_of[value.name] = parts[-1]
        size += value.nbytes
    return parts


def _tensors_of(
    part: dict[str, ModelTensor], add: Callable[[int], None]
) -> dict[str, torch.Tensor]:
    read: dict[str, torch.Tensor] = {}
    for value in part.values():
        if value.name not in read:
            read[value.name] = value.contiguous()
            add(value.nbytes)
    return {name: read[value.name] for name, value in part.items()}


def _write_safetensors(file: Any, part: dict[str, ModelTensor], add: Callable[[int], None]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, value in part.items():
        if value.dtype not in SAFETENSORS_NAMES:
            raise _C.ConfigError(f"{name}: safetensors files cannot hold {value.dtype}")
        end = offset + value.nbytes
        shape = list(value.shape)
        header[name] = {
            "dtype": SAFETENSORS_NAMES[value.dtype],
            "shape": shape,
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for value in part.values():
        for chunk in value.chunks():
            file.write((ctypes.c_char * chunk.nbytes).from_address(chunk.data_ptr()))
            add(chunk.nbytes)
