"""A zerorun job on the hosts of a test, and what it leaves behind."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from ranks import piped

from .namespaces import Hosts

ROOT = Path(__file__).parents[2]
ZERORUN = ROOT / "build/release/bin/zerorun"


class Job:
    """The command on the first host."""

    def __init__(
        self,
        hosts: Hosts,
        options: list[str],
        program: list[str],
        start: str = "ssh",
        hostfile: Path | None = None,
    ) -> None:
        self.hosts = hosts
        arguments = [str(ZERORUN), "--accelerator", "cpu"]
        arguments += ["--hostfile", str(hostfile or hosts.hostfile)]
        if start == "ssh":
            arguments += [f"--launcher_args={hosts.ssh_options()}"]
        self.started = time.monotonic()
        command = hosts.inside(0, *arguments, *options, *program)
        self.process = piped(command, stdin=subprocess.DEVNULL)

    def members(self, *hosts: int) -> list[int]:
        """Every process on all hosts, or those given, but their sshd: the job's."""
        found = [pid for host in hosts or (0, 1) for pid in self.hosts.processes(host)]
        return [pid for pid in found if name_of(pid) not in ("sshd", "")]

    def read_lines(self, count: int) -> list[str]:
        assert self.process.stdout is not None
        return [self.process.stdout.readline().rstrip("\n") for _ in range(count)]

    def end(self, code: int = 0, timeout: float = 60) -> tuple[str, str]:
        """Rest of standard output, and standard error, of a job that ends with an exit code as a
        shell gives it, and leaves no process."""
        try:
            output, errors = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        found = self.process.returncode
        assert (found if found >= 0 else 128 - found) == code, errors
        assert self.survivors() == []
        return output, errors

    def survivors(self, patience: float = 10) -> list[str]:
        """What is left once everything had time to go."""
        deadline = time.monotonic() + patience
        while (left := self.members()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [name_of(pid) for pid in left]

    def kill(self) -> None:
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()


def name_of(pid: int) -> str:
    """Empty for a process that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return "" if fields["State"][0] in "ZX" else fields["Name"]
