"""What other programs' checkpoints say, read without running the code that their files name, and
without following the names of files out of their folder."""

import argparse
import contextlib
import functools
import importlib
import io
import os
import types
import zipfile
from dataclasses import dataclass
from typing import Any

import torch

from zerorun import _C


class PlainObject:
    """An object of a class that its writer has: its attributes, and none of its code."""


# The objects that DeepSpeed's files hold besides tensors and plain values.
_AS_OBJECTS = (
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.utils.tensor_fragment.fragment_address",
    "deepspeed.utils.tensor_fragment.tensor_fragment",
)
_NUMPY = ("core", "_core")  # where NumPy 1 and 2 say that their functions are


@functools.cache
def _allowed() -> list[Any]:
    """Names that files may have, with their replacements here."""
    allowed: list[Any] = [(PlainObject, name) for name in _AS_OBJECTS]
    allowed.append((int, "deepspeed.runtime.zero.config.ZeroStageEnum"))
    allowed += [argparse.Namespace, types.SimpleNamespace, set, slice]
    with contextlib.suppress(ImportError):
        numpy: Any = importlib.import_module("numpy")
        core = importlib.import_module("numpy._core.multiarray")
        for name in ("scalar", "_reconstruct"):
            function = getattr(core, name)
            allowed += [(function, f"numpy.{package}.multiarray.{name}") for package in _NUMPY]
        allowed += [numpy.dtype, numpy.ndarray]
        allowed += [type(numpy.dtype(letter)) for letter in "?bBhHiIlLqQefdU"]
    return allowed


def read(path: str) -> Any:
    """The content of a file. Tensors stay on the disk until they are used.

    Raises CheckpointError for files that are missing or damaged, and for classes that are not on
    the list of those whose objects are known to do nothing.
    """
    return _load(path, path, is_mapped(path))


def read_bytes(data: io.BytesIO, path: str) -> Any:
    """As read(), of what is a part of a file; `path` names it in messages."""
    return _load(data, path, False)


# PyTorch 2.4 has no such list for a while, nor one of functions: it reads files without these.
_allowing: Any = getattr(torch.serialization, "safe_globals", contextlib.nullcontext)


def _load(file: Any, path: str, mapped: bool) -> Any:
    try:
        with _allowing(_allowed()):
            return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # pickles fail in many ways
        reason = str(error)
        if "GLOBAL" in reason or "WeightsUnpickler" in reason or "Unsupported" in reason:
            found = reason.partition("GLOBAL ")[2].partition(" ")[0]
            what = f"the class or function {found}" if found else reason.partition("\n")[0]
            reason = (
                f"it names {what}, and reading a checkpoint runs no code that it names. If you "
                "trust a class, allow it before: torch.serialization.add_safe_globals([...])"
            )
        raise _C.CheckpointError(f"{path}: {reason}") from error


@dataclass(frozen=True)
class SavedPart:
    """A file of torch.save, or `nbytes` of one: a `tensor` of so many elements of a dtype if these
    are known."""

    path: str
    offset: int = 0
    nbytes: int | None = None
    tensor: tuple[int, torch.dtype] | None = None


def check_intact(part: SavedPart) -> None:
    """Raises CheckpointError for what is not as it was saved, or another tensor than is known."""
    path, offset, tensor = part.path, part.offset, part.tensor
    try:
        with open(path, "rb") as whole:
            file: Any = whole
            if part.nbytes is not None:
                whole.seek(offset)
                file = io.BytesIO(whole.read(part.nbytes))
            damaged = None
            if zipfile.is_zipfile(file):  # the format before zip files has no checksums
                with zipfile.ZipFile(file) as parts:
                    damaged = parts.testzip()
    except Exception as error:  # zip files fail in many ways
        raise _C.CheckpointError(f"{path}: {error}") from error
    if damaged is not None:
        raise _C.CheckpointError(
            f"{path}: damaged: the checksum of its part {damaged} is not that of what was saved"
        )
    if tensor is not None:
        file.seek(0)
        value = read_bytes(file, path)
        found = type(value).__name__
        if is_readable(value):
            found = f"{value.numel()} elements of {value.dtype}"
        expected = f"{tensor[0]} elements of {tensor[1]}"
        if found != expected:
            raise _C.CheckpointError(f"{path}: at byte {offset} got {found}, {expected} were saved")


def is_readable(value: Any) -> bool:
    """True for a tensor whose elements are there, each by itself."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not (value.is_meta or value.is_quantized)
    )


def is_plain(value: Any) -> bool:
    """True for a tensor of real numbers."""
    return is_readable(value) and not value.is_complex()


def is_mapped(path: str) -> bool:
    """True if the tensors of what read() returns are parts of the file."""
    return zipfile.is_zipfile(path)


# --- names that files have for other files, which must be in the same folder ---


def is_there(path: str) -> bool:
    """True also for a link that leads nowhere, and for what this user must not see: what opens it
    says which."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def one_name(name: str, where: str) -> str:
    """The name, if it is one of an entry of a folder. Raises CheckpointError."""
    if name in {"", ".", ".."} or os.path.basename(name) != name or "\0" in name:
        raise _C.CheckpointError(
            f"{where}: got {name!r}, expected the name of something in the same folder"
        )
    return name


def inside(folder: str, name: str, where: str) -> str:
    """The path of a file that `where` names, relative to its folder. Raises CheckpointError for one
    that is elsewhere or that is not there."""
    parts = name.split("/")
    for part in parts:
        one_name(part, where)
    path = os.path.join(folder, *parts)
    if not os.path.isfile(path):
        raise _C.CheckpointError(f"{path} is missing, which {where} names")
    return path


def read_tag(path: str) -> str:
    """The tag in a file `latest`. Raises CheckpointError."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(4096)
    except (OSError, UnicodeDecodeError) as error:
        raise _C.CheckpointError(f"{path}: {error}") from error
    return one_name(text.strip(), path)
