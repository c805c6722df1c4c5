"""Jobs of ranks that stay between files of cases, and whose ranks share what they import."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from ranks import DEADLINE, HERE, command, environment


class PythonSource:
    """A process of which Python programs are forks; see python_source.py. By `variables` a launcher
    or a shell finds it in the place of Python."""

    def __init__(self, build: Path, modules: Sequence[str], given: Mapping[str, str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="python-source-"))
        (self._folder / "bin").mkdir()
        python = self._folder / "bin" / "python"
        python.write_text(f"#!{sys.executable} -SI\n{(HERE / 'forked_python.py').read_text()}")
        python.chmod(0o755)
        self.variables = {"VIRTUAL_ENV": str(self._folder)}
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(self._folder / "socket"))
            listener.listen()
            numbers = listener.fileno(), os.getpid()
            self._process = subprocess.Popen(
                [sys.executable, HERE / "python_source.py", *map(str, numbers), *modules],
                env=environment(build, **given),
                stdin=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
            )

    def close(self) -> None:
        """Ends the process, and forks that there still are."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class RankPool:
    """One job; see rank_main.py. It starts with the first run, and again after a rank is lost."""

    def __init__(self, build: Path, ranks: int, variables: Mapping[str, str]) -> None:
        self._build, self._ranks, self._variables = build, ranks, variables
        self._job: subprocess.Popen[bytes] | None = None
        self._folder = Path()
        self._connections: list[tuple[socket.socket, TextIO]] = []  # by rank

    def run(self, name: str, folder: Path, cases: Sequence[str]) -> str:
        """Runs a file's cases on all ranks; returns what they printed, with their exit statuses."""
        request = json.dumps({"name": name, "folder": str(folder), "cases": list(cases)})
        try:
            if self._job is None:
                self._start()
            for connection, _ in self._connections:
                connection.sendall(f"{request}\n".encode())
            statuses = [replies.readline().strip() or "lost" for _, replies in self._connections]
        except OSError as error:
            log = self._folder / "log"
            statuses = [f"{error}: {log.read_text(errors='replace') if log.exists() else ''}"]
        if any(not status.lstrip("-").isdigit() for status in statuses):
            self.close()
        printed = [path.read_text(errors="replace") for path in sorted(folder.glob("rank*.txt"))]
        return "\n".join([f"exit statuses: {statuses}", *printed])

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._folder / "socket"))
            listener.listen()
            listener.settimeout(DEADLINE)
            program = ["--no_local_rank", HERE / "rank_main.py", self._folder / "socket"]
            with open(self._folder / "log", "wb") as log:
                streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                env = environment(self._build, **self._variables)
                job = command(self._build, self._ranks, *program)
                self._job = subprocess.Popen(job, env=env, **streams)
            found = {}
            for _ in range(self._ranks):
                connection, _ = listener.accept()
                connection.settimeout(DEADLINE)
                replies = connection.makefile()
                found[int(replies.readline())] = connection, replies
        self._connections = [found[rank] for rank in range(self._ranks)]

    def close(self) -> None:
        """Ends the job."""
        for connection, replies in self._connections:
            replies.close()
            connection.close()
        self._connections.clear()
        if self._job is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._job.wait(5)
            self._job.kill()  # the launcher's ranks end with it
            self._job.wait()
            self._job = None
            shutil.rmtree(self._folder, ignore_errors=True)


class RankPools:
    """The pools of a test session, by number of ranks and environment. `python`: where they find
    the session's source; those with a package of their own have one of their own."""

    def __init__(self, build: Path, python: Mapping[str, str]) -> None:
        self._build, self._python = build, python
        self._pools: dict[tuple[int, tuple[tuple[str, str], ...]], RankPool] = {}
        self._sources: dict[str, PythonSource] = {}  # by package

    def get(self, ranks: int, variables: Mapping[str, str]) -> RankPool:
        key = ranks, tuple(sorted(variables.items()))
        if key not in self._pools:
            self._pools[key] = RankPool(self._build, ranks, self.with_python(variables))
        return self._pools[key]

    def with_python(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables of a job whose Python is a fork of a source."""
        package = variables.get("PYTHONPATH")
        if package is None:
            return {**variables, **self._python}
        if package not in self._sources:
            self._sources[package] = PythonSource(self._build, ["torch._dynamo"], variables)
        return {**variables, **self._sources[package].variables}

    def close(self) -> None:
        for held in (*self._pools.values(), *self._sources.values()):
            held.close()


class CaseResults:
    """How the cases of a file (all, or those given) went; they run at the first question."""

    def __init__(
        self,
        pools: RankPools,
        name: str,
        folder: Path,
        cases: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._pools, self._name, self._folder = pools, name, folder
        self._cases, self._variables = cases, variables or {}
        self._jobs: dict[int, tuple[list[dict[str, str]], str]] = {}

    def check(self, case: str, ranks: int) -> None:
        """Fails with the ranks' tracebacks unless the case passed on all of them."""
        results, output = self._job(ranks)
        assert len(results) == ranks, output
        failed = [
            f"rank {rank}: {result.get(case, 'not reached')}"
            for rank, result in enumerate(results)
            if result.get(case) != "passed"
        ]
        assert not failed, "\n".join([*failed, output])

    def _job(self, ranks: int) -> tuple[list[dict[str, str]], str]:
        if ranks not in self._jobs:
            folder = self._folder / str(ranks)
            folder.mkdir(parents=True)
            output = self._pools.get(ranks, self._variables).run(self._name, folder, self._cases)
            files = [folder / f"rank{rank}.json" for rank in range(ranks)]
            results = [json.loads(file.read_text()) for file in files if file.exists()]
            self._jobs[ranks] = results, output
        return self._jobs[ranks]
