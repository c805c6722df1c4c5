"""A process that has imported PyTorch and its compiler, of which ranks are forks: importing them
takes seconds of a core. rank_source.py DESCRIPTOR: of the socket at which rank_main.py asks.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import socket
import sys
from typing import Any, NoReturn

import rank_main
import torch  # noqa: F401 - what takes long

if "FAKE_TORCH_CUDA" in os.environ:  # the compiler asks at once whether there is a GPU
    importlib.import_module("fake_torch_cuda").installed()
importlib.import_module("torch._dynamo")  # every file's first optimizer would load it


def become_rank(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """What the process that asks was started as by the launcher."""
    rank_main.end_with_parent()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[:] = request["path"]
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
    rank_main.serve(request["socket"])
    rank_main.end()


def main() -> None:
    rank_main.end_with_parent()
    gc.collect()
    gc.freeze()  # collections in forks look at their own objects only
    listener = socket.socket(fileno=int(sys.argv[1]))
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    asking, _ = listener.accept()
                    message, streams, *_ = socket.recv_fds(asking, rank_main.MAX_BYTES, 3)
                    rank = os.fork()
                    if rank == 0:
                        become_rank(json.loads(message), streams)
                    for stream in streams:
                        os.close(stream)
                    selector.register(os.pidfd_open(rank), selectors.EVENT_READ, (rank, asking))
                else:  # a rank has ended
                    rank, asking = key.data
                    status = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    with asking, contextlib.suppress(OSError):  # nobody asks any more
                        asking.sendall(str(status).encode())


if __name__ == "__main__":
    main()
