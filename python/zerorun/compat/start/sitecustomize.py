"""Python imports this when a program that the launcher started begins.

PyTorch lets the threads of gloo run on when the interpreter ends. One that drops the last tensor
of a collective then asks for the interpreter's lock, is ended there, and so aborts a process whose
program had succeeded (`terminate called without an active exception`). Ranks that have one core
each, which that thread has to share, meet it often. So programs that have a process group, or had
one whose threads are left, wait for their threads before they end.
"""

import atexit
import importlib.machinery
import importlib.util
import os
import sys
import time

_HERE = os.path.dirname(os.path.abspath(__file__))
_LONGEST_WAIT_S = 1.0  # for threads that are never idle


def _read(thread: str, name: str) -> str:
    try:
        with open(f"/proc/self/task/{thread}/{name}", encoding="utf-8") as file:
            return file.read()
    except OSError:  # it has ended
        return ""


def _is_running(thread: str) -> bool:
    return _read(thread, "stat").rpartition(")")[2].split()[:1] == ["R"]


def _had_process_group() -> bool:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return False
    # Threads outlive destroy_process_group() where something else, as DDP, holds the group.
    threads = os.listdir("/proc/self/task")
    return distributed.is_initialized() or any("gloo" in _read(each, "comm") for each in threads)


def _wait_for_threads() -> None:
    if not _had_process_group():
        return
    own = str(os.getpid())  # the main thread's number
    deadline = time.monotonic() + _LONGEST_WAIT_S
    quiet = 0
    while quiet < 3 and time.monotonic() < deadline:
        time.sleep(0.005)  # without the interpreter's lock
        busy = any(_is_running(thread) for thread in os.listdir("/proc/self/task") if thread != own)
        quiet = 0 if busy else quiet + 1


def _run_hidden() -> None:
    """The sitecustomize that this one hides, if there is one."""
    path = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


atexit.register(_wait_for_threads)
_run_hidden()
