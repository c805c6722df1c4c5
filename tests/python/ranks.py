"""Cases that run on every rank of a real job, as pytest tests.

A file of cases has functions named ``case_*`` that all ranks execute in the same order. One job per
file and number of ranks runs them all; `CaseResults` tells how each one went.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEADLINE = 400
HIDDEN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def cases_in(name: str) -> list[str]:
    """The cases of tests/python/cases/<name>.py, without importing it."""
    tree = ast.parse((HERE / "cases" / f"{name}.py").read_text())
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [function for function in functions if function.startswith("case_")]


def environment(build: Path, **variables: str) -> dict[str, str]:
    """This one, so that a job finds the built package and this Python."""
    inherited = {key: value for key, value in os.environ.items() if key not in HIDDEN}
    path = [str(build / "python"), str(HERE)]
    found = {"PYTHONPATH": os.pathsep.join(path), "VIRTUAL_ENV": sys.prefix, "OMP_NUM_THREADS": "1"}
    return inherited | found | {"HF_HUB_OFFLINE": "1"} | variables


def launch(
    build: Path, ranks: int, *arguments: str | Path, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A job of CPU ranks under the zerorun launcher, until it ends."""
    launcher = build / "bin" / "zerorun"
    options = ["--accelerator", "cpu", "--num_gpus", str(ranks)]
    return subprocess.run(
        [launcher, *options, *map(str, arguments)],
        env=environment(build, **variables),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


class CaseResults:
    """How the cases of a file (all, or those given) went; the job runs at the first question."""

    def __init__(
        self,
        build: Path,
        name: str,
        folder: Path,
        cases: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._build, self._name, self._folder = build, name, folder
        self._cases, self._variables = cases, variables or {}
        self._jobs: dict[int, tuple[list[dict[str, str]], str]] = {}

    def check(self, case: str, ranks: int) -> None:
        """Fails with the ranks' tracebacks unless the case passed on all of them."""
        results, output = self._job(ranks)
        assert len(results) == ranks, output
        for rank, result in enumerate(results):
            assert result.get(case) == "passed", f"rank {rank}: {result.get(case, output)}"

    def _job(self, ranks: int) -> tuple[list[dict[str, str]], str]:
        if ranks not in self._jobs:
            folder = self._folder / str(ranks)
            folder.mkdir(parents=True)
            arguments = ["--no_local_rank", HERE / "rank_main.py", self._name, folder]
            job = launch(self._build, ranks, *arguments, *self._cases, **self._variables)
            files = [folder / f"rank{rank}.json" for rank in range(ranks)]
            results = [json.loads(file.read_text()) for file in files if file.exists()]
            self._jobs[ranks] = results, job.stdout + job.stderr
        return self._jobs[ranks]
