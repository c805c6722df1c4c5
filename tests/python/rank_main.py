"""One rank of a job that runs files of cases as they are asked for: rank_main.py SOCKET.

Each file runs in a fork of this process, so that it starts from the same state as the first, and a
crash of one ends nothing but itself.
"""

import importlib
import json
import os
import socket
import sys
import traceback
import warnings
from pathlib import Path

from ranks import cases_in, end_with_parent

# What PyTorch 2.4 says of its own functions.
OF_TORCH_2_4 = ("TypedStorage is deprecated", "`torch.cpu.amp.autocast")


def run(name: str, folder: Path, cases: list[str]) -> None:
    warnings.simplefilter("error")
    for text in OF_TORCH_2_4:
        warnings.filterwarnings("ignore", text)
    module = importlib.import_module(f"cases.{name}")
    end_engines = importlib.import_module("cases.models").end_engines
    results = {}
    for case in cases or cases_in(name):
        try:
            function = getattr(module, case)
            function(*[folder / case][: function.__code__.co_argcount])
            end_engines()
            results[case] = "passed"
        except BaseException:
            # The other ranks fail too, or wait: nothing after this would tell anything.
            results[case] = traceback.format_exc()
            break
        finally:
            (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(results))


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
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main() -> None:
    """Runs what the pool that listens at the socket asks for, until it hangs up."""
    # The launcher's socket goes on holding the port, and each file's rank 0 listens beside it: one
    # that has listened cannot do so again on its port.
    os.environ.pop("ZERORUN_STORE_FD", None)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        connection.sendall(f"{os.environ['RANK']}\n".encode())
        for line in connection.makefile():
            request = json.loads(line)
            status = run_in_fork(request["name"], Path(request["folder"]), request["cases"])
            connection.sendall(f"{status}\n".encode())


if __name__ == "__main__":
    main()
