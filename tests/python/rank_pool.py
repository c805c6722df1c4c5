"""Jobs of ranks that stay between files of cases, and whose ranks share what they import."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from ranks import DEADLINE, HERE, command, environment


class RankSource:
    """A process of which ranks are forks; see rank_source.py. It starts with the first of them."""

    def __init__(self, build: Path, variables: Mapping[str, str]) -> None:
        self._build, self._variables = build, variables
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path()

    def socket(self) -> Path:
        """Where the process listens, or will."""
        if self._process is None:
            self._folder = Path(tempfile.mkdtemp(prefix="rank-source-"))
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(str(self._folder / "socket"))
                listener.listen()
                self._process = subprocess.Popen(
                    [sys.executable, HERE / "rank_source.py", str(listener.fileno())],
                    env=environment(self._build, **self._variables),
                    stdin=subprocess.DEVNULL,
                    pass_fds=[listener.fileno()],
                )
        return self._folder / "socket"

    def close(self) -> None:
        """Ends the process, and ranks that there still are."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            shutil.rmtree(self._folder, ignore_errors=True)


class RankPool:
    """One job; see rank_main.py. It starts with the first run, and again after a rank is lost."""

    def __init__(
        self, build: Path, ranks: int, variables: Mapping[str, str], source: RankSource
    ) -> None:
        self._build, self._ranks, self._variables = build, ranks, variables
        self._source = source
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
            statuses = [f"{error}: {self._log()}"]
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
            program.append(self._source.socket())
            with open(self._folder / "log", "wb") as log:
                self._job = subprocess.Popen(
                    command(self._build, self._ranks, *program),
                    env=environment(self._build, **self._variables),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            found = {}
            for _ in range(self._ranks):
                connection, _ = listener.accept()
                connection.settimeout(DEADLINE)
                replies = connection.makefile()
                found[int(replies.readline())] = connection, replies
        self._connections = [found[rank] for rank in range(self._ranks)]

    def _log(self) -> str:
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def close(self) -> None:
        """Ends the job."""
        for connection, replies in self._connections:
            replies.close()
            connection.close()
        self._connections.clear()
        if self._job is not None:
            try:
                self._job.wait(5)
            except subprocess.TimeoutExpired:
                self._job.kill()  # the launcher's ranks end with it
                self._job.wait()
            self._job = None
            shutil.rmtree(self._folder, ignore_errors=True)


class RankPools:
    """The pools of a test session, by number of ranks and environment."""

    def __init__(self, build: Path) -> None:
        self._build = build
        self._pools: dict[tuple[int, tuple[tuple[str, str], ...]], RankPool] = {}
        self._sources: dict[str, RankSource] = {}  # by what differs before ranks do

    def get(self, ranks: int, variables: Mapping[str, str]) -> RankPool:
        key = ranks, tuple(sorted(variables.items()))
        if key not in self._pools:
            package = variables.get("PYTHONPATH", "")
            if package not in self._sources:
                self._sources[package] = RankSource(self._build, variables)
            self._pools[key] = RankPool(self._build, ranks, variables, self._sources[package])
        return self._pools[key]

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
