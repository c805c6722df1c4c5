"""Saves that the core writes while the training goes on."""

import atexit
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from zerorun import _C
from zerorun.process_state import STATE
from zerorun.program_warning import logger


class BackgroundSaver:
    """The save of an engine that is under way, at most one.

    Its memory is taken at the first save and kept. Whatever goes wrong in the background is raised
    on every rank, by the next `poll`, `save` or `wait`; an error that nobody has asked for ends the
    program with exit code 1.
    """

    def __init__(self, core: _C.Engine, settings: _C.Config, communicator: _C.Communicator) -> None:
        self._core = core
        self._settings = settings
        self._communicator = communicator
        self._saver: _C.AsyncSaver | None = None
        self._is_pending = False
        self._committed: Callable[[], None] = lambda: None
        self._failed: Callable[[], None] = lambda: None

    def save(
        self,
        arguments: tuple[Any, ...],
        *,
        committed: Callable[[], None],
        failed: Callable[[], None],
    ) -> None:
        """Begins a save with these arguments of `_C.AsyncSaver.save`. Collective.

        Waits for the one before and raises its error. `committed` and `failed` are called when the
        outcome is known here, on every rank; they must not communicate.
        """
        self.wait()
        if self._saver is None:
            nbytes = self._settings.checkpoint.async_buffer_size
            self._saver = _C.AsyncSaver(self._core, nbytes, self._settings.comm_timeout_s)
            STATE.savers.add(self)
            _finish_at_exit()
        self._saver.save(*arguments)
        self._is_pending, self._committed, self._failed = True, committed, failed

    def poll(self) -> None:
        """Raises the error of a save that has failed on some rank. Collective."""
        self._ask("poll")

    def wait(self) -> None:
        """Returns when nothing is under way; raises the error of the last save. Collective."""
        self._ask("wait")

    def close(self) -> None:
        """As wait, without the other ranks; then gives the memory back."""
        try:
            self._ask("wait_alone")
        finally:
            self._saver = None

    def _ask(self, how: str) -> None:
        """Follows up on a save that is complete, as the core's saver says by that method."""
        if not self._is_pending or self._saver is None:
            return
        try:
            complete = getattr(self._saver, how)() is not False  # the others return when it is
        except Exception:
            self._is_pending = False
            self._failed()
            raise
        if complete:
            self._is_pending = False
            self._committed()
            if how != "wait_alone":  # every rank sees what that has changed
                self._communicator.barrier()


@functools.cache
def _finish_at_exit() -> None:
    atexit.register(_finish)
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """What is under way is the parent's."""
    for saver in STATE.savers:
        saver._is_pending = False


def _finish() -> None:
    """What is under way is finished first. Python ignores errors here, so the process ends at once
    where one says that a checkpoint is not there."""
    for saver in list(STATE.savers):
        try:
            saver.close()
        except Exception as error:
            logger.error("a checkpoint could not be saved: %s", error)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
