"""A process that has imported PyTorch and its compiler, of which Python programs are forks:
importing them takes seconds of a core.

python_source.py DESCRIPTOR PARENT MODULE...: the socket at which forked_python.py asks, the process
with which this one ends, and what to import at the first question.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
from typing import Any, NoReturn

MAX_BYTES = 1 << 17  # of a message, with its environment
MAX_DESCRIPTORS = 64
HIGH = 500  # above all descriptors in use
PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """This process is killed when the one that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run(arguments: list[str]) -> None:
    """As Python does: [OPTION...] SCRIPT, or -m MODULE, and arguments."""
    while arguments[0].startswith("-") and arguments[0] != "-m":
        del arguments[0]
    if arguments[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, os.path.dirname(os.path.realpath(arguments[0])))
    sys.argv = arguments
    program = sys.modules["__main__"] = types.ModuleType("__main__")
    program.__file__ = arguments[0]
    with open(arguments[0], "rb") as file:
        exec(compile(file.read(), arguments[0], "exec"), program.__dict__)  # noqa: S102


def status_of(arguments: list[str]) -> int:
    try:
        run(arguments)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def become(request: dict[str, Any], received: list[int], packages: list[str]) -> NoReturn:
    """Runs what the process that asks was started for, in its surroundings."""
    end_with_parent()
    # They get the numbers that the process which asks knows them by.
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, HIGH) for descriptor in received]
    for descriptor in received:
        os.close(descriptor)
    for descriptor, number in zip(high, request["descriptors"], strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    network = f"/proc/{request['process']}/ns/net"
    if os.stat(network).st_ino != os.stat("/proc/self/ns/net").st_ino:
        with open(network, encoding="ascii") as file:
            assert ctypes.CDLL(None).setns(file.fileno(), 0) == 0
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    python, *arguments = request["arguments"]
    # Launchers that it starts find this; sys.executable is Python, which takes all of its options.
    sys.prefix = os.path.dirname(os.path.dirname(python))
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [*map(os.path.abspath, given), *packages]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    status = status_of(arguments)
    threading._shutdown()
    atexit._run_exitfuncs()
    # Without taking PyTorch's modules apart, a second of a core: test_program_ends.py does.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def serve(listener: socket.socket, packages: list[str]) -> NoReturn:
    """Makes a fork for each process that asks, and tells it how that one ended."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if selector.get_map().get(key.fd) is not key:  # of a fork that was seen to end
                    continue
                if key.fileobj is listener:
                    asking, _ = listener.accept()
                    message, received, *_ = socket.recv_fds(asking, MAX_BYTES, MAX_DESCRIPTORS)
                    fork = os.fork()
                    if fork == 0:
                        become(json.loads(message), received, packages)
                    for descriptor in received:
                        os.close(descriptor)
                    ended = os.pidfd_open(fork)
                    for file in (ended, asking):
                        selector.register(file, selectors.EVENT_READ, (fork, ended, asking))
                    continue
                fork, ended, asking = key.data
                if key.fileobj is asking:  # it has been killed
                    os.kill(fork, signal.SIGKILL)
                    selector.unregister(asking)
                    continue
                status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
                selector.unregister(ended)
                os.close(ended)
                with contextlib.suppress(KeyError):
                    selector.unregister(asking)
                with asking, contextlib.suppress(OSError):
                    asking.sendall(str(status).encode())


def main() -> None:
    end_with_parent()
    if os.getppid() != int(sys.argv[2]):  # it has ended before
        return
    listener = socket.socket(fileno=int(sys.argv[1]))
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    packages = [folder for folder in sys.path[1:] if folder not in given]
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.select()
    importlib.import_module("torch")
    if "FAKE_TORCH_CUDA" in os.environ:  # the compiler asks at once whether there is a GPU
        importlib.import_module("fake_torch_cuda").installed()
    for module in sys.argv[3:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # collections in forks look at their own objects only
    serve(listener, packages)


if __name__ == "__main__":
    main()
