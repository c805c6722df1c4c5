"""Cases that run on every rank of a real job, as pytest tests.

A file of cases has functions named ``case_*`` that all ranks execute in the same order. One that
takes an argument gets a folder for what it writes.
`rank_jobs.CaseResults` runs them and tells how each one went.
"""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DEADLINE = 400
HIDDEN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def cases_in(name: str) -> list[str]:
    """The cases of tests/python/cases/<name>.py, without importing it."""
    text = (HERE / "cases" / f"{name}.py").read_text()
    return re.findall(r"^def (case_\w+)\(", text, re.MULTILINE)


def forked(function: Callable[..., None], ranks: int, port: int, *arguments: object) -> None:
    """Runs it on every rank of a job, in forks of this process."""

    def run(rank: int) -> None:
        job = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({key: str(value) for key, value in job.items()})
        function(*arguments)

    fork = multiprocessing.get_context("fork")
    jobs = [fork.Process(target=run, args=(rank,)) for rank in range(ranks)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert not any(job.exitcode for job in jobs)


def environment(build: Path, **variables: str) -> dict[str, str]:
    """This one, so that a job finds the built package and this Python."""
    inherited = {key: value for key, value in os.environ.items() if key not in HIDDEN}
    path = [str(build / "python"), str(HERE)]
    found = {"PYTHONPATH": os.pathsep.join(path), "VIRTUAL_ENV": sys.prefix, "OMP_NUM_THREADS": "1"}
    return inherited | found | {"HF_HUB_OFFLINE": "1"} | variables


def command(build: Path, ranks: int, *arguments: str | Path) -> list[str]:
    """The zerorun launcher with CPU ranks."""
    launcher = build / "bin" / "zerorun"
    options = ["--accelerator", "cpu", "--num_gpus", str(ranks)]
    return [str(launcher), *options, *map(str, arguments)]


def ran(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """What a command did, with its exit status and output."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def piped(command: Sequence[object], **options: Any) -> subprocess.Popen[str]:
    """A command that has begun, and whose output can be read."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(list(map(str, command)), **pipes | options)


def passed(job: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """One that ended well; what any other has written is the error."""
    assert job.returncode == 0, job.stdout[-4000:] + job.stderr[-4000:]
    return job


def write_small_job(folder: Path) -> None:
    """A text, and a model.json for the train program."""
    (folder / "text").write_text("".join(f"{i * i} is the square of {i}\n" for i in range(500)))
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    (folder / "model.json").write_text(json.dumps(shape))


def wait_for_step(job: subprocess.Popen[str], least: int) -> list[str]:
    """What the train program prints up to a step, or a later one."""
    lines = []
    for line in job.stdout:
        lines.append(line)
        if line.startswith("step ") and int(line.split()[1].split("/")[0]) >= least:
            break
    assert job.poll() is None, lines
    return lines


def interrupted(job: subprocess.Popen[str]) -> tuple[int, str, str]:
    """The exit code, output and errors after Ctrl-C."""
    job.send_signal(signal.SIGINT)
    output, errors = job.communicate(timeout=DEADLINE)
    return job.returncode, output, errors


def output_of(*command: object, **options: Any) -> str:
    """Of a command that ends well."""
    return passed(ran(list(map(str, command)), **options)).stdout


def shell(build: Path, line: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command as users type it, on a machine without GPUs."""
    own = environment(build, CUDA_VISIBLE_DEVICES="", **variables)
    environments = [Path(folder) / "bin" for folder in (own["VIRTUAL_ENV"], sys.prefix)]
    path = [build / "bin", *environments, cwd, os.environ["PATH"]]
    own["PATH"] = os.pathsep.join(map(str, path))
    return ran(["bash", "-c", line], cwd=cwd, env=own, timeout=DEADLINE)


def launch(
    build: Path, ranks: int, *arguments: str | Path, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a job of CPU ranks until it ends."""
    return ran(
        command(build, ranks, *arguments),
        env=environment(build, **variables),
        cwd=cwd,
        timeout=DEADLINE,
    )
