"""Jobs that run files of cases, whose ranks share what they import."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ranks import HERE, environment, launch, torch_python

# What sources have imported: half a second of each rank of each job.
MODULES = ["torch._dynamo", "torch.distributed.checkpoint.state_dict", "pytest"]
MODULES += ["zerorun.initialization", "zerorun.sharding", "zerorun.zero"]


class PythonSource:
    """A process of which Python programs are forks; see python_source.py. By `variables` a launcher
    or a shell finds it in the place of Python."""

    def __init__(self, modules: Sequence[str], given: Mapping[str, str]) -> None:
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
                env=environment(**given),
                stdin=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
            )

    def close(self) -> None:
        """Ends the process, and forks that there still are."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class Forks:
    """Python programs of a test session: forks of its source, or of one of their own if they have a
    package of their own."""

    def __init__(self) -> None:
        self._sources: dict[str, PythonSource] = {}  # by package

    def with_python(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables of a job whose Python is a fork of a source."""
        package = variables.get("PYTHONPATH")
        if package is None:
            return {**torch_python(), **variables}
        if package not in self._sources:
            self._sources[package] = PythonSource(MODULES, variables)
        return {**variables, **self._sources[package].variables}

    def close(self) -> None:
        for source in self._sources.values():
            source.close()


@dataclass
class CaseResults:
    """How the cases of a file (all, or those given) went; they run at the first question."""

    forks: Forks
    name: str
    folder: Path
    cases: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    found: dict[int, tuple[list[dict[str, str]], str]] = field(default_factory=dict)  # by ranks

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
        if ranks not in self.found:
            folder = self.folder / str(ranks)
            folder.mkdir(parents=True)
            program = ["--no_local_rank", HERE / "rank_main.py", self.name, folder, *self.cases]
            variables = self.forks.with_python(self.variables)
            job = launch(ranks, *program, **variables)
            output = f"exit code {job.returncode}\n{job.stdout}\n{job.stderr}"
            files = [folder / f"rank{rank}.json" for rank in range(ranks)]
            results = [json.loads(file.read_text()) for file in files if file.exists()]
            self.found[ranks] = results, output
        return self.found[ranks]
