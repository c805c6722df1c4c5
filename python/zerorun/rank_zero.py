"""Rank 0's values on every rank."""

from __future__ import annotations

import torch

from zerorun import _C


def share(tensor: torch.Tensor, communicator: _C.Communicator, label: str) -> None:
    """Overwrites a tensor of any dtype with rank 0's values, byte by byte. Collective."""
    if communicator.world_size == 1 or tensor.is_meta or tensor.numel() == 0:
        return
    values = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
    communicator.broadcast(values.view(torch.uint8), 0, label)
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
    length = torch.tensor([len(own)])
    share(length, communicator, f"length of the {label}")
    data = torch.zeros(int(length.item()), dtype=torch.uint8)
    if communicator.rank == 0:
        data = torch.tensor(list(own), dtype=torch.uint8)
    share(data, communicator, label)
    return bytes(data.tolist()).decode()


def texts_of_all(text: str, communicator: _C.Communicator) -> list[str]:
    """The ranks' texts, in their order. Collective."""
    own = torch.tensor(list(text.encode()), dtype=torch.uint8)
    sizes = torch.empty(communicator.world_size, dtype=torch.int64)
    communicator.all_gather(torch.tensor([own.numel()]), sizes, "lengths of texts")
    largest = max(1, int(sizes.max().item()))
    padded = torch.zeros(largest, dtype=torch.uint8)
    padded[: own.numel()] = own
    rows = torch.empty(largest * communicator.world_size, dtype=torch.uint8)
    communicator.all_gather(padded, rows, "texts")
    pairs = zip(rows.view(-1, largest).tolist(), sizes.tolist(), strict=True)
    return [bytes(row[:size]).decode() for row, size in pairs]
