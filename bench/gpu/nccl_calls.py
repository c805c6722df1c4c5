#!/usr/bin/env python3
"""What a call of NCCL costs the host, with communicators whose calls block and with others.

    NCCL_HOSTID=... zerorun --num_gpus 2 python bench/gpu/nccl_calls.py

Every rank enqueues all_reduces of 4 KiB and waits for none; a call that does not block has to be
asked for its end before the next one. Prints the least time of a call in several rounds. zerorun
uses communicators of the first kind. Ranks may share a GPU, if each has an NCCL_HOSTID of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from pathlib import Path

import torch

CALLS, ROUNDS, NUMEL = 200, 5, 1024
ID_BYTES = 128
SUCCESS, IN_PROGRESS = 0, 7  # ncclResult_t
FLOAT, SUM = 7, 0  # ncclDataType_t, ncclRedOp_t


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * ID_BYTES),)


class Config(ctypes.Structure):
    """ncclConfig_t as of NCCL 2.14, which all later ones take."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
    )

    def __init__(self, blocking: bool) -> None:
        super().__init__(ctypes.sizeof(Config), 0xCAFEBEEF, 21400, int(blocking))


def open_nccl() -> ctypes.CDLL:
    """The copy that PyTorch brings, else the system's."""
    folder = Path(torch.__file__).parent.parent / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    return ctypes.CDLL(str(folder) if folder.exists() else "libnccl.so.2")


class Nccl:
    """One communicator."""

    def __init__(self, library: ctypes.CDLL, ranks: int, rank: int, unique: bytes, blocking: bool):
        self.library, self.comm = library, ctypes.c_void_p()
        unique_id = UniqueId.from_buffer_copy(unique)
        result = library.ncclCommInitRankConfig(
            ctypes.byref(self.comm), ctypes.c_int(ranks), unique_id, ctypes.c_int(rank),
            ctypes.byref(Config(blocking)),
        )  # fmt: skip
        self.finish(result, "ncclCommInitRankConfig")

    def finish(self, result: int, what: str) -> None:
        """Waits until the communicator is done with a call that returned `result`."""
        state = ctypes.c_int(result)
        while state.value == IN_PROGRESS:
            asked = self.library.ncclCommGetAsyncError(self.comm, ctypes.byref(state))
            if asked != SUCCESS:
                state.value = asked
        if state.value != SUCCESS:
            raise RuntimeError(f"{what} returned {state.value} (NCCL_DEBUG=INFO says why)")

    def all_reduce(self, data: int, numel: int, stream: int) -> None:
        pointer = ctypes.c_void_p(data)
        result = self.library.ncclAllReduce(
            pointer, pointer, ctypes.c_size_t(numel), ctypes.c_int(FLOAT), ctypes.c_int(SUM),
            self.comm, ctypes.c_void_p(stream),
        )  # fmt: skip
        self.finish(result, "ncclAllReduce")


def unique_id(library: ctypes.CDLL) -> bytes:
    made = UniqueId()
    result = library.ncclGetUniqueId(ctypes.byref(made))
    if result != SUCCESS:
        raise RuntimeError(f"ncclGetUniqueId returned {result}")
    return bytes(made)


def microseconds(nccl: Nccl, tensor: torch.Tensor, stream: int) -> float:
    """The host's time of one call, the least of all rounds."""
    least = float("inf")
    for _ in range(ROUNDS + 1):  # the first one connects
        begin = time.perf_counter()
        for _ in range(CALLS):
            nccl.all_reduce(tensor.data_ptr(), tensor.numel(), stream)
        least = min(least, time.perf_counter() - begin)
        torch.cuda.synchronize()
    return least / CALLS * 1e6


def main() -> int:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    if not torch.cuda.is_available():
        print("nccl_calls: PyTorch sees no GPU, so nothing was run", file=sys.stderr)
        return 3
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    library = open_nccl()
    version = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(version))
    tensor = torch.zeros(NUMEL, device="cuda")
    for blocking in (True, False):
        made = [unique_id(library) if rank == 0 else b""]
        torch.distributed.broadcast_object_list(made)
        nccl = Nccl(library, ranks, rank, made[0], blocking)
        took = microseconds(nccl, tensor, torch.cuda.current_stream().cuda_stream)
        kind = "blocking" if blocking else "not blocking"
        if rank == 0:
            print(
                f"NCCL {version.value}, {ranks} ranks, {kind}: {took:.1f} us per call", flush=True
            )
        torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # the communicators go with the process


if __name__ == "__main__":
    os.environ.setdefault("NCCL_HOSTID", f"rank-{os.environ.get('RANK', '0')}")
    sys.exit(main())
