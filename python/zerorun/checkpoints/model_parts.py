"""Checkpoints of a model that is divided among ranks: a folder for each part.

``<directory>/<tag>/mp_rank_00``, ``mp_rank_01``, ... each are a checkpoint of checkpoint.py's;
``<directory>/latest`` names the tag when all parts are there. A save over a tag first puts the one
that it replaces aside, as ``<tag>.previous``: a load takes that until the new one has all parts.
"""

import contextlib
import os
import re
import secrets
import shutil
from typing import Any

from zerorun import _C, program_state
from zerorun.agreement import all_or_none, text_of_rank_zero
from zerorun.checkpoints import checkpoint
from zerorun.checkpoints.checkpoint import Training, Wanted
from zerorun.interchange import formats
from zerorun.model.engine_ranks import EngineRanks
from zerorun.program_warning import logger
from zerorun.whole_file import replacing

_PART = re.compile(r"mp_rank_(\d\d+)")
_LATEST, _MANIFEST, _PREVIOUS = "latest", "checkpoint.json", ".previous"


def _name(model_rank: int) -> str:
    return f"mp_rank_{model_rank:02d}"


def parts_in(folder: str) -> list[int]:
    """The numbers of the parts in a folder."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            match = _PART.fullmatch(entry)
            if match and os.path.exists(os.path.join(folder, entry, _MANIFEST)):
                found.append(int(match[1]))
    return sorted(found)


def _save_of(folder: str, model_rank: int) -> str:
    """Which save a part is from, so that parts of different ones are not taken for one model."""
    saved = _C.SavedModel(folder, _name(model_rank))
    part = program_state.decode(saved.client_state).get("part") or {}
    return str(part.get("save", ""))


def save(
    training: Training,
    directory: str | os.PathLike[str],
    tag: str | None,
    client_state: dict[str, Any] | None,
    *,
    save_latest: bool,
    **options: Any,
) -> str:
    """As checkpoint.save, of all parts. Collective over the job."""
    shards, ranks = training._shards, training._shards.ranks
    name = text_of_rank_zero(checkpoint.tag_of(training, tag), ranks.job, "tag of the checkpoint")
    identity = text_of_rank_zero(secrets.token_hex(8), ranks.job, "name of the save")
    folder = os.path.join(os.fspath(directory), name)
    part = {"model_rank": ranks.model_rank, "model_size": ranks.model_size, "save": identity}

    def committed() -> None:
        if ranks.data.rank == 0:
            _end_save(folder, ranks.model_size, identity, save_latest=save_latest)

    with all_or_none(ranks.job, "save_checkpoint"):
        if checkpoint.is_node_local(training):
            raise _C.ConfigError(
                "checkpoint.use_node_local_storage is not for a model that is divided among "
                "model-parallel ranks: save on a file system that all ranks share"
            )
        shards.saver.wait()
    with all_or_none(ranks.job, "save_checkpoint"):
        if ranks.job.rank == 0:
            _put_aside(folder, ranks.model_size)
    try:
        with all_or_none(ranks.job, "save_checkpoint"):
            checkpoint.save(
                training,
                folder,
                _name(ranks.model_rank),
                client_state,
                save_latest=False,
                part=part,
                committed=committed,
                **options,
            )
    except Exception:
        if ranks.job.rank == 0 and os.path.isdir(folder + _PREVIOUS):  # undoes _put_aside
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(folder + _PREVIOUS, folder)
        raise
    return name


def _is_complete(folder: str, size: int) -> bool:
    """True if the folder has all parts, of one save."""
    if parts_in(folder) != list(range(size)):
        return False
    try:
        return len({_save_of(folder, number) for number in range(size)}) == 1
    except _C.Error:
        return False


def _put_aside(folder: str, size: int) -> None:
    """Keeps what is there loadable until the save that begins now has all parts."""
    if _is_complete(folder, size):
        shutil.rmtree(folder + _PREVIOUS, ignore_errors=True)
        os.rename(folder, folder + _PREVIOUS)


def _end_save(folder: str, size: int, identity: str, *, save_latest: bool) -> None:
    """Whichever part is complete last finds the others."""
    if not _is_complete(folder, size) or _save_of(folder, 0) != identity:
        return
    directory, tag = os.path.split(folder)
    if save_latest:
        # Not found: another part was the last one, too, and has written the same.
        with (
            contextlib.suppress(FileNotFoundError),
            replacing(os.path.join(directory, _LATEST)) as file,
        ):
            file.write(f"{tag}\n".encode())
    shutil.rmtree(folder + _PREVIOUS, ignore_errors=True)


def load(
    training: Training, directory: str | os.PathLike[str], tag: str | None, wanted: Wanted
) -> tuple[str | None, dict[str, Any] | None]:
    """As checkpoint.load, of all parts. Collective over the job."""
    ranks = training._shards.ranks
    training._shards.saver.wait()
    named = "" if tag is None else str(tag)
    if tag is None and ranks.job.rank == 0:
        named = _latest(os.fspath(directory))
    if ranks.job.rank == 0 and named:
        named = _loadable(os.fspath(directory), named, ranks.model_size)
    name = text_of_rank_zero(named, ranks.job, "tag of the checkpoint")
    if not name:
        return None, None
    folder = os.path.join(os.fspath(directory), name)
    with all_or_none(ranks.job, "load_checkpoint"):
        _check_parts(folder, ranks, os.fspath(directory), name)
        identity = _save_of(folder, ranks.model_rank)
    first = text_of_rank_zero(identity, ranks.job, "name of the save")
    with all_or_none(ranks.job, "load_checkpoint"):
        if identity != first:
            raise _C.CheckpointError(
                f"{folder}: {_name(ranks.model_rank)} is from another save than the other parts: "
                "a save over this tag did not end; load another tag"
            )
    with all_or_none(ranks.job, "load_checkpoint"):
        _, client_state = checkpoint.load(training, folder, _name(ranks.model_rank), wanted)
    return folder, client_state


def _loadable(directory: str, tag: str, size: int) -> str:
    """The tag, or what a save over it that did not end has put aside."""
    folder = os.path.join(directory, tag)
    if _is_complete(folder, size) or not _is_complete(folder + _PREVIOUS, size):
        return tag
    logger.warning(
        "%s: a save over this tag did not end; loading the one before it, %s%s",
        folder,
        tag,
        _PREVIOUS,
    )
    return tag + _PREVIOUS


def _latest(directory: str) -> str:
    try:
        with open(os.path.join(directory, _LATEST), encoding="utf-8") as file:
            return file.read().strip()
    except (FileNotFoundError, UnicodeDecodeError):  # whoever reads it for good tells of the second
        return ""


def _check_parts(folder: str, ranks: EngineRanks, directory: str, tag: str) -> None:
    """Raises CheckpointError unless the folder has the parts of as many ranks."""
    found, size = parts_in(folder), ranks.model_size
    if found == list(range(size)):
        return
    if found:
        raise _C.CheckpointError(
            f"{folder}: has the parts of model-parallel ranks {found}, expected those of {size} "
            "ranks: how a model is divided cannot change with a load"
        )
    if os.path.exists(os.path.join(folder, _MANIFEST)):
        raise _C.CheckpointError(
            f"{folder}: was saved by ranks that all had the whole model, and here it is divided "
            f"among {size} model-parallel ranks: load it into a job without an mpu"
        )
    foreign = formats.find(directory, tag)
    if foreign is not None:
        raise _C.CheckpointError(
            f"{foreign}: another program's checkpoint, which loads where every rank has the whole "
            f"model; here it is divided among {size} model-parallel ranks"
        )
    raise _C.CheckpointError(f"{folder}: holds no checkpoint")


def check_whole(directory: str | os.PathLike[str], tag: str | None) -> None:
    """Raises CheckpointError where the checkpoint is one of a model's parts. Of one rank."""
    named = _latest(os.fspath(directory)) if tag is None else str(tag)
    folder = os.path.join(os.fspath(directory), named)
    found = parts_in(folder)
    if found and not os.path.exists(os.path.join(folder, _MANIFEST)):
        raise _C.CheckpointError(
            f"{folder}: has the parts of {len(found)} model-parallel ranks: give initialize the "
            f"mpu (or device_mesh) of a job that is divided alike; `zerorun ckpt export {folder} "
            "OUTPUT --tag mp_rank_00` exports one part"
        )
