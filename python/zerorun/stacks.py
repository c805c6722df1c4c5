"""Python's part of a stall report: where the threads of this process are."""

import faulthandler
import os
import signal
import threading
from functools import cache

from zerorun import _C


def answer_stack_requests() -> None:
    """From now on a rank that waits for this process can see its Python stacks.

    They are written by a signal handler in C, so also while Python itself waits or is stuck. A
    program that uses the signal itself keeps it. Does nothing on other threads than the main one,
    which is the one that gets the signal and for which faulthandler then makes a stack.
    """
    if threading.current_thread() is threading.main_thread():
        _register()


@cache
def _register() -> None:
    number, name = _C.stack_requests()
    if signal.getsignal(number) == signal.SIG_DFL:
        # For as long as the process lives: the handler keeps the descriptor.
        faulthandler.register(number, os.memfd_create(name), all_threads=True)
