"""Host memory that a load no longer needs, given back to the system while the load goes on."""

import ctypes
import functools
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from zerorun.process_state import STATE

PIECE = 256 << 10  # bytes that a load reads, sends or writes at once; each rank of a host has them
_TRIMMED = 1 << 20  # bytes that were freed before they are given back
_PAGEMAP = Path("/proc/self/pagemap")


def pieces_of(numel: int, itemsize: int) -> Iterator[tuple[int, int]]:
    """Where pieces of so many elements begin and end."""
    step = max(1, PIECE // itemsize)
    for begin in range(0, numel, step):
        yield begin, min(numel, begin + step)


def copy_in_pieces(to: torch.Tensor, source: torch.Tensor) -> None:
    """``to.copy_(source)``, of which no more than a piece of a file is in memory at a time."""
    tracked = torch.is_grad_enabled() and (to.requires_grad or source.requires_grad)
    if tracked or to.shape != source.shape or not (_is_plain(to) and _is_plain(source)):
        to.copy_(source)
        return
    for begin, end in pieces_of(source.numel(), source.element_size()):
        piece = source.view(-1)[begin:end]
        to.view(-1)[begin:end].copy_(piece)
        forget_pages(piece)


def forget_pages(tensor: torch.Tensor) -> None:
    """Gives back the memory of a tensor that is a part of a file; reading it again reads the file.

    A file's pages otherwise count as this process's until memory is short. Of other memory, and
    of pages that a program has written to, nothing is given back. Nor is a page that has something
    beside the tensor, which another thread may write to meanwhile.
    """
    if tensor.device.type != "cpu" or not _is_plain(tensor) or tensor.is_pinned():
        return
    begin, end = _whole_pages(tensor)
    if begin < end and _are_of_a_file(begin, end):
        size = ctypes.c_size_t((end - begin) * mmap.PAGESIZE)
        _libc().madvise(ctypes.c_void_p(begin * mmap.PAGESIZE), size, mmap.MADV_DONTNEED)


def is_of_a_file(tensor: torch.Tensor) -> bool:
    """True if the system can read all whole pages of a CPU tensor from a file again."""
    begin, end = _whole_pages(tensor)
    return begin < end and _are_of_a_file(begin, end)


def _whole_pages(tensor: torch.Tensor) -> tuple[int, int]:
    begin = -(-tensor.data_ptr() // mmap.PAGESIZE)
    return begin, (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE


def _is_plain(tensor: torch.Tensor) -> bool:
    own = type(tensor) in {torch.Tensor, torch.nn.Parameter} and tensor.layout is torch.strided
    return own and tensor.is_contiguous()


def _are_of_a_file(begin: int, end: int) -> bool:
    """True if no page has contents that are nowhere else. See proc_pid_pagemap(5)."""
    try:
        with _PAGEMAP.open("rb", buffering=0) as file:
            file.seek(begin * 8)
            entries = torch.frombuffer(bytearray(file.read((end - begin) * 8)), dtype=torch.int64)
    except OSError:
        return False
    kind = (entries >> 61) & 7  # 4: in memory, 2: swapped, 1: a file's
    return entries.numel() == end - begin and bool(((kind == 0) | (kind & 1 == 1)).all())


def moved(nbytes: int) -> None:
    """Counts values that were moved out of memory which is free now. The C library keeps what was
    freed for what may come, as much as the load takes altogether."""
    STATE.moved_nbytes += nbytes
    if STATE.moved_nbytes >= _TRIMMED:
        trim()


def trim() -> None:
    """Gives freed memory back."""
    STATE.moved_nbytes = 0
    trims = getattr(_libc(), "malloc_trim", None)  # glibc's
    if trims is not None:
        trims(0)


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None)
