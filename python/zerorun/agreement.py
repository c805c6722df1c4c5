"""What ranks tell each other: that one has failed, rank 0's values, texts."""

import contextlib
import ctypes
from collections.abc import Iterator

import torch

from zerorun import _C

_MESSAGE_NBYTES = 2048


@contextlib.contextmanager
def all_or_none(communicator: _C.Communicator, operation: str) -> Iterator[None]:
    """A block that fails on every rank when it fails on one. It has no collectives of its own, or
    only those of ranks that it fails on alike.

    A rank that failed raises its own error, an OSError as IoError; the others raise an error of the
    lowest failing rank's type that names this rank. Collective.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
        if isinstance(caught, OSError) and not isinstance(caught, _C.Error):
            error = _C.IoError(f"{operation}: {caught}")
            error.__cause__ = caught
    _agree(communicator, error, operation)


def _agree(communicator: _C.Communicator, error: Exception | None, operation: str) -> None:
    rank, world_size = communicator.rank, communicator.world_size
    first = torch.tensor([world_size if error is None else rank], device="cpu")
    try:
        communicator.all_reduce(first, "min", f"{operation}: agree")
    except _C.Error:
        if error is not None:  # the peers are gone or elsewhere, perhaps for the same reason
            raise error from error.__cause__
        raise
    source = int(first.item())
    if source == world_size:
        return
    job = _C.rank_from_environment()  # of which the communicator may be a group
    own = job.rank if job.world_size > world_size else rank
    text = f"{own} {type(error).__name__} {error}".encode()[:_MESSAGE_NBYTES]
    message = torch.zeros(_MESSAGE_NBYTES, dtype=torch.uint8, device="cpu")
    message[: len(text)] = torch.tensor(list(text), dtype=torch.uint8, device="cpu")
    communicator.broadcast(message, source, f"{operation}: error")
    if error is not None:
        raise error
    told = bytes(message.tolist()).rstrip(b"\0").decode(errors="replace")
    failed, kind, reason = told.split(" ", 2)
    known = getattr(_C, kind, None)
    raised = known if isinstance(known, type) and issubclass(known, _C.Error) else _C.Error
    raise raised(f"{operation}: rank {failed} failed: {reason}")


# --- values ---


def reduced(value: int, communicator: _C.Communicator, op: str, label: str) -> int:
    """The ranks' integers by `op`: "sum", "min" or "max". Collective."""
    found = torch.tensor([value], device="cpu")
    communicator.all_reduce(found, op, label)
    return int(found.item())


def on_any_rank(flag: bool, communicator: _C.Communicator, label: str) -> bool:
    """True if `flag` is on a rank. Collective."""
    return bool(reduced(int(flag), communicator, "max", label))


def share(tensor: torch.Tensor, communicator: _C.Communicator, label: str, root: int = 0) -> None:
    """Overwrites a tensor of any dtype with the root's values, byte by byte. Collective."""
    if communicator.world_size == 1 or tensor.is_meta or tensor.numel() == 0:
        return
    values = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
    communicator.broadcast(values.view(torch.uint8), root, label)
    overwrite(tensor, values.view(tensor.shape))


def overwrite(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Gives a tensor values of its shape. One that torch.expand has made, whose elements share
    memory, gets memory of its own."""
    shared = any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True))
    if shared:
        tensor.data = values.to(tensor.device, tensor.dtype)
    else:
        tensor.detach().copy_(values)


def text_of_rank_zero(text: str, communicator: _C.Communicator, label: str) -> str:
    """Rank 0's text on every rank. Collective."""
    own = text.encode()
    length = torch.tensor([len(own)], device="cpu")
    share(length, communicator, f"length of the {label}")
    data = torch.zeros(int(length.item()), dtype=torch.uint8, device="cpu")
    if communicator.rank == 0:
        data = torch.tensor(list(own), dtype=torch.uint8, device="cpu")
    share(data, communicator, label)
    return bytes(data.tolist()).decode()


def texts_of_all(text: str, communicator: _C.Communicator) -> list[str]:
    """The ranks' texts, in their order. Collective."""
    return [data.decode() for data in bytes_of_all(text.encode(), communicator, "texts")]


def bytes_of_all(data: bytes, communicator: _C.Communicator, what: str) -> list[bytes]:
    """The same of bytes. `what`: they are, for the labels of collectives."""
    own = torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)
    sizes = torch.empty(communicator.world_size, dtype=torch.int64, device="cpu")
    communicator.all_gather(torch.tensor([len(data)], device="cpu"), sizes, f"sizes of {what}")
    largest = max(1, int(sizes.max().item()))
    rows = torch.empty(largest * communicator.world_size, dtype=torch.uint8, device="cpu")
    communicator.all_gather(torch.cat([own, own.new_zeros(largest - own.numel())]), rows, what)
    pairs = zip(rows.view(-1, largest), sizes.tolist(), strict=True)
    return [ctypes.string_at(row.data_ptr(), size) for row, size in pairs]  # without NumPy, too
