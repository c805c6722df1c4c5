"""A terminal, on which programs behave as they do for users."""

import contextlib
import os
import pty
import select
from collections.abc import Mapping, Sequence


class Terminal:
    """A pseudo-terminal on which a command runs in the foreground."""

    def __init__(self, command: Sequence[object], cwd: object, env: Mapping[str, str]) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(str(cwd))
            os.execvpe(str(command[0]), list(map(str, command)), env)
        self.text = ""

    def read_until(self, expected: str) -> None:
        while expected not in self.text:
            ready, _, _ = select.select([self.master], [], [], 60)
            assert ready, f"no '{expected}' in: {self.text}"
            self.text += os.read(self.master, 65536).decode()

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait(self) -> int:
        with contextlib.suppress(OSError):  # the terminal is closed by its last user
            while chunk := os.read(self.master, 65536):
                self.text += chunk.decode(errors="replace")
        _, status = os.waitpid(self.pid, 0)
        os.close(self.master)
        return os.waitstatus_to_exitcode(status)
