"""The states of a torch optimizer that runs on shards, beside the checkpoint they belong to.

One file per rank in a folder of its own; the checkpoint, which is written last, names the folder
and keeps each file's size and hash. States are stored by parameter and element, so another world
size may load them. Until the checkpoint is there, the folder has a file `unfinished`, by which a
later save knows what a killed job left.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import time
from pathlib import Path
from typing import IO, Any, cast

import torch

from zerorun import _C
from zerorun.agreement import all_or_none, text_of_rank_zero, texts_of_all
from zerorun.hooks.parameter_memory import states_of
from zerorun.interchange import untrusted
from zerorun.model.units import plain_name
from zerorun.shards.shards import Shards
from zerorun.whole_file import sync_folder

# By parameter: elements [begin, begin + numel) of its state, as (begin, numel, state).
Chunk = tuple[int, int, dict[str, Any]]
Chunks = dict[str, list[Chunk]]
# An entry in the checkpoint: {"folder": name, "files": [(name, bytes, SHA-256, host), ...]}.
Record = dict[str, Any]

_PREFIX = "optimizer_shards"
_UNFINISHED = "unfinished"
_LONGEST_SAVE_S = 24 * 3600.0  # what is older and unfinished is no other job's save under way


def save(shards: Shards, directory: str, tag: str, *, node_local: bool) -> Record:
    """Writes this rank's file. Collective; raises on every rank, with nothing left behind.

    `node_local`: the directory is on a disk that perhaps not all ranks see.
    """
    ranks = shards.communicator
    number = text_of_rank_zero(secrets.token_hex(8), ranks, "name of the optimizer's files")
    record: Record = {"folder": f"{_PREFIX}.{tag}.{number}", "files": []}
    own: tuple[Any, ...] = ()
    try:
        with all_or_none(ranks, "saving optimizer states"):
            folder = os.path.join(directory, record["folder"])
            os.makedirs(directory, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
                Path(folder, _UNFINISHED).touch()
            written = _write(os.path.join(folder, _name(ranks.rank)), own_chunks(shards))
            own = _name(ranks.rank), *written, platform.node() if node_local else ""
    except Exception:
        discard(shards, directory, record, node_local=node_local)
        raise
    record["files"] = [tuple(json.loads(text)) for text in texts_of_all(json.dumps(own), ranks)]
    return record


def _name(rank: int) -> str:
    return f"rank{rank}.pt"


def own_chunks(shards: Shards) -> list[tuple[str, int, int, dict[str, Any]]]:
    """The states that this rank owns, of a torch optimizer or of the core's rule."""
    core, kept, names = shards.core, shards.torch_states, parameter_names(shards)
    chunks = []
    for interval in core.state_intervals():
        if interval.grad is None or not interval.owned:
            continue
        if kept is not None:
            state = kept.get(interval.parameter, interval.begin)
        else:
            step = torch.tensor(float(core.step_count), dtype=torch.float32, device="cpu")
            state = {"step": step} | states_of(core, interval)
        chunks.append((names[interval.parameter], interval.begin, interval.numel, state))
    return chunks


def parameter_names(shards: Shards) -> dict[int, str]:
    """The core's numbers of the parameters with names that no other rank's have."""
    layout = shards.layout
    return {index: layout.saved_name(parameter) for parameter, index in layout.ids.items()}


class _HashedFile:
    """A file under construction that knows the size and hash of what was written."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.size = 0
        self.hash = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.hash.update(data)
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _write(path: str, chunks: list[Any]) -> tuple[int, str]:
    with open(path, "wb") as file:
        hashed = _HashedFile(file)
        torch.save(chunks, cast("IO[bytes]", hashed))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(os.path.dirname(path))
    return hashed.size, hashed.hash.hexdigest()


def discard(shards: Shards, directory: str, record: Record, *, node_local: bool) -> None:
    """Removes the files of a save whose checkpoint failed."""
    if shards.communicator.rank == 0 or node_local:
        shutil.rmtree(os.path.join(directory, record["folder"]), ignore_errors=True)


def tidy(directory: str, tag: str, current: Record | None) -> None:
    """After a save: its files are complete. Removes those of earlier checkpoints of the same tag,
    and those that belong to none, of saves that were killed."""
    names = re.compile(rf"{_PREFIX}\.(.+)\.([0-9a-f]+)")
    for path in Path(directory).iterdir():
        if current is not None and path.name == current["folder"]:
            (path / _UNFINISHED).unlink(missing_ok=True)
        elif (found := names.fullmatch(path.name)) and (
            found[1] == tag or _is_left(path, found[2])
        ):
            shutil.rmtree(path, ignore_errors=True)


def _is_left(folder: Path, number: str) -> bool:
    """True if it is unfinished, no other save is writing it, and no checkpoint beside names it."""
    try:
        age = time.time() - (folder / _UNFINISHED).stat().st_mtime
        tables = folder.parent.glob("*/checkpoint.json")
        return age > _LONGEST_SAVE_S and not any(
            number.encode() in table.read_bytes() for table in tables
        )
    except OSError:
        return False


def check_record(record: Record, where: str) -> None:
    """Raises CheckpointError for one that save() does not make: names lead out of no folder."""
    rows = record.get("files") if isinstance(record, dict) else None
    try:
        names = [str(record["folder"]), *(str(name) for name, _size, _hash, *_host in rows or ())]
    except (KeyError, TypeError, ValueError) as error:
        raise _C.CheckpointError(f"{where}: no list of optimizer states: {error!r}") from error
    for name in names:
        untrusted.one_name(name, where)


def bring(shards: Shards, directory: str, record: Record) -> Record:
    """The record of the files that this rank needs, which are on its disk afterwards. Collective.

    Raises CheckpointError for files that no host of the job has.
    """
    folder = os.path.join(directory, record["folder"])
    with all_or_none(shards.communicator, "looking for optimizer states"):
        files = record["files"]
        present = [os.path.exists(os.path.join(folder, name)) for name, *_ in files]
        own = record | {"files": [row for row, here in zip(files, present, strict=True) if here]}
        try:
            read(shards, directory, own, strict=True)
        except _C.CheckpointError:  # other files have what is missing
            own = record
    needed = [own is record and not here for here in present]
    rows = [(name, size, *(host or [""])) for name, size, _, *host in files]
    _C.bring_files(shards.core, folder, rows, needed)
    return own


def verify(shards: Shards, directory: str, record: Record, *, node_local: bool) -> None:
    """Each file is hashed by one rank: all are intact when this succeeds on all ranks.

    `node_local`: by every rank whose record has it. Raises CheckpointError.
    """
    rank, world_size = shards.communicator.rank, shards.communicator.world_size
    for index, (name, size, digest, *_) in enumerate(record["files"]):
        path = os.path.join(directory, record["folder"], name)
        is_own = node_local or index % world_size == rank
        try:
            _check(path, size, digest if is_own else None)
        except OSError as error:
            raise _C.CheckpointError(f"optimizer states: {error}") from error


def read(shards: Shards, directory: str, record: Record, strict: bool) -> Chunks:
    """The content of a checkpoint's files, after a check that this rank's elements are there.

    Not `strict`: parameters may be missing. The values stay on disk until they are used. Raises
    CheckpointError.
    """
    chunks: Chunks = {}
    for name, *_ in record["files"]:
        path = os.path.join(directory, record["folder"], name)
        try:
            loaded = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
        except Exception as error:  # a state of a class that is not torch's, for one
            raise _C.CheckpointError(f"optimizer states in {path}: {error}") from error
        for parameter, *chunk in loaded:
            chunks.setdefault(plain_name(parameter), []).append(tuple(chunk))
    names = parameter_names(shards)
    for interval in shards.core.state_intervals():
        if interval.grad is not None:
            name = names[interval.parameter]
            if strict or name in chunks:
                _overlaps(chunks.get(name, []), interval.begin, interval.numel, name)
    return chunks


def _check(path: str, size: int, digest: str | None) -> None:
    found = os.path.getsize(path)
    if found != size:
        raise _C.CheckpointError(f"{path}: got {found} bytes, {size} were saved; load another tag")
    if digest is None:
        return
    hashed = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            hashed.update(chunk)
    if hashed.hexdigest() != digest:
        raise _C.CheckpointError(
            f"{path}: damaged: its SHA-256 is not that of what was saved; load another tag"
        )


def restore(shards: Shards, chunks: Chunks) -> None:
    """Gives the optimizer the states of this rank's elements out of what read() returned."""
    names, kept = parameter_names(shards), shards.torch_states
    for interval in shards.core.state_intervals() if chunks else ():
        name = names[interval.parameter]
        if interval.grad is not None and name in chunks:
            if kept is None:
                raise _C.InternalError("a torch optimizer's states, but there is no such optimizer")
            state = assemble(chunks[name], interval.begin, interval.numel, name)
            kept.put(interval.parameter, interval.begin, state)


def assemble(chunks: list[Chunk], begin: int, numel: int, name: str) -> dict[str, Any]:
    """The state of elements [begin, begin + numel) of a parameter."""
    state: dict[str, Any] = {}
    for low, high, chunk_begin, chunk_numel, values in _overlaps(chunks, begin, numel, name):
        for key, value in values.items():
            tensor = isinstance(value, torch.Tensor) and value.dim() > 0
            if not tensor or value.numel() != chunk_numel:  # a step count, say
                state[key] = value.clone() if isinstance(value, torch.Tensor) else value
                continue
            if key not in state:
                state[key] = torch.empty(numel, dtype=value.dtype, device="cpu")
            part = value.flatten()[low - chunk_begin : high - chunk_begin]
            state[key][low - begin : high - begin] = part
    return state


def _overlaps(
    chunks: list[Chunk], begin: int, numel: int, name: str
) -> list[tuple[int, int, int, int, dict[str, Any]]]:
    """The chunks with elements in [begin, begin + numel), each with these as [low, high)."""
    found, filled = [], 0
    for chunk_begin, chunk_numel, values in chunks:
        low, high = max(begin, chunk_begin), min(begin + numel, chunk_begin + chunk_numel)
        if low < high:
            found.append((low, high, chunk_begin, chunk_numel, values))
            filled += high - low
    if filled != numel:
        raise _C.CheckpointError(
            f"optimizer state of {name}: {filled} of {numel} elements are in the checkpoint, which "
            "is incomplete or another model's"
        )
    kinds = {tuple(sorted(values)) for *_, values in found}
    if len(kinds) > 1:
        raise _C.CheckpointError(
            f"optimizer state of {name}: its parts have different states, {sorted(kinds)}"
        )
    return found
