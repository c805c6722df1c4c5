"""One rank of a job that runs files of cases as they are asked for: rank_main.py SOCKET SOURCE.

A fork of rank_source.py, which listens at SOURCE, stands in for this process. Each file runs in a
fork of that one, so that it starts from the same state as the first, and a crash of one ends
nothing but itself.
"""

import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import traceback
import warnings
from pathlib import Path
from typing import NoReturn

from ranks import cases_in

MAX_BYTES = 1 << 17  # of the message with the environment
PR_SET_PDEATHSIG = 1


def run(name: str, folder: Path, cases: list[str]) -> None:
    warnings.simplefilter("error")
    module = importlib.import_module(f"cases.{name}")
    results = {}
    for case in cases or cases_in(name):
        try:
            getattr(module, case)(folder / case)
            results[case] = "passed"
        except BaseException:
            # The other ranks fail too, or wait: nothing after this would tell anything.
            results[case] = traceback.format_exc()
            break
        finally:
            (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(results))


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end() -> NoReturn:
    """Without taking PyTorch's modules apart, a second of a core: test_interpreter_end.py does."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run_in_fork(name: str, folder: Path, cases: list[str]) -> int:
    """The exit status of a child that ends when this process does."""
    child = os.fork()
    if child > 0:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end_with_parent()
    output = os.open(folder / f"rank{os.environ['RANK']}.txt", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(output, stream)
    run(name, folder, cases)
    end()


def serve(pool: str) -> None:
    """Runs what the pool that listens there asks for, until it hangs up."""
    # The launcher's socket goes on holding the port, and each file's rank 0 listens beside it: one
    # that has listened cannot do so again on its port.
    os.environ.pop("ZERORUN_STORE_FD", None)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(pool)
        connection.sendall(f"{os.environ['RANK']}\n".encode())
        for line in connection.makefile():
            request = json.loads(line)
            status = run_in_fork(request["name"], Path(request["folder"]), request["cases"])
            connection.sendall(f"{status}\n".encode())


def main() -> None:
    _, pool, source = sys.argv
    request = {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": sys.path,
        "socket": pool,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(source)
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        sys.exit(int(connection.recv(MAX_BYTES) or 1))


if __name__ == "__main__":
    main()
