"""All ranks succeed or all raise, so that no rank waits for one that has failed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from zerorun import _C

_MESSAGE_NBYTES = 2048


@contextlib.contextmanager
def all_or_none(communicator: _C.Communicator, operation: str) -> Iterator[None]:
    """A block, without collectives of its own, that fails on every rank when it fails on one.

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
    first = torch.tensor([world_size if error is None else rank])
    try:
        communicator.all_reduce(first, "min", f"{operation}: agree")
    except _C.Error:
        if error is not None:  # the peers are gone or elsewhere, perhaps for the same reason
            raise error from error.__cause__
        raise
    source = int(first.item())
    if source == world_size:
        return
    text = f"{_job_rank(communicator)} {type(error).__name__} {error}".encode()[:_MESSAGE_NBYTES]
    message = torch.zeros(_MESSAGE_NBYTES, dtype=torch.uint8)
    message[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
    communicator.broadcast(message, source, f"{operation}: error")
    if error is not None:
        raise error
    told = bytes(message.tolist()).rstrip(b"\0").decode(errors="replace")
    failed, kind, reason = told.split(" ", 2)
    known = getattr(_C, kind, None)
    raised = known if isinstance(known, type) and issubclass(known, _C.Error) else _C.Error
    raise raised(f"{operation}: rank {failed} failed: {reason}")


def _job_rank(communicator: _C.Communicator) -> int:
    """This rank's number in the job, of which the communicator may be a group."""
    job = _C.rank_from_environment()
    return job.rank if job.world_size > communicator.world_size else communicator.rank
