"""Cases that run on every rank of a real job, as pytest tests; and programs of the release build.

A file of cases has functions named ``case_*`` that all ranks execute in the same order. One that
takes an argument gets a folder for what it writes.
`rank_jobs.CaseResults` runs them and tells how each one went.
"""

import importlib.util
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
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "release"
ZERORUN = BUILD / "bin" / "zerorun"  # the launcher
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


def torch_python() -> dict[str, str]:
    """Variables by which a job's ranks are forks of a process that has imported PyTorch."""
    return {"VIRTUAL_ENV": os.environ["ZERORUN_TEST_TORCH"]}


def transformers_python() -> dict[str, str]:
    """And one that has imported Hugging Face's libraries, too."""
    import pytest  # which the scripts that write data/ have no need of

    for module in ("accelerate", "peft", "transformers"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no {module}")
    return {"VIRTUAL_ENV": os.environ["ZERORUN_TEST_TRANSFORMERS"]}


def environment(**variables: str) -> dict[str, str]:
    """This one, so that a job finds the built package and this Python."""
    inherited = {key: value for key, value in os.environ.items() if key not in HIDDEN}
    path = [str(BUILD / "python"), str(HERE)]
    found = {"PYTHONPATH": os.pathsep.join(path), "VIRTUAL_ENV": sys.prefix, "OMP_NUM_THREADS": "1"}
    return inherited | found | {"HF_HUB_OFFLINE": "1"} | variables


def command(ranks: int, *arguments: str | Path) -> list[str]:
    """The launcher with CPU ranks."""
    options = ["--accelerator", "cpu", "--num_gpus", str(ranks)]
    return [str(ZERORUN), *options, *map(str, arguments)]


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


def shell(line: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command as users type it, on a machine without GPUs."""
    own = environment(CUDA_VISIBLE_DEVICES="", **variables)
    environments = [Path(folder) / "bin" for folder in (own["VIRTUAL_ENV"], sys.prefix)]
    path = [BUILD / "bin", *environments, cwd, os.environ["PATH"]]
    own["PATH"] = os.pathsep.join(map(str, path))
    return ran(["bash", "-c", line], cwd=cwd, env=own, timeout=DEADLINE)


def launch(
    ranks: int, *arguments: str | Path, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a job of CPU ranks until it ends."""
    own = environment(**variables)
    return ran(command(ranks, *arguments), env=own, cwd=cwd, timeout=DEADLINE)
