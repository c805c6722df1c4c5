#!/usr/bin/env python3
"""Writes golden/PROGRAM.json: the figures of the programs here under real DeepSpeed.

    DS_ACCELERATOR=cpu PYTHON tests/ecosystem/make_golden.py [PROGRAM | PROGRAM/RUN]...

A single run joins those that are in the file. PYTHON has DeepSpeed besides
requirements-ecosystem.txt. The ranks are forks of this process, with the environment that
`deepspeed --num_gpus 2` gives them: what they import is imported once. DeepSpeed communicates
through Gloo; its own kernel for CPUs would first be compiled.
"""

import importlib
import json
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from runs import GOLDEN, HERE, PACKAGES, RANKS, RUNS, golden

VERSIONED = ("deepspeed", "torch", "transformers", "accelerate")


def run_rank(rank: int, port: int, *arguments: str) -> None:
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_SIZE": RANKS}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "HF_HUB_OFFLINE": 1}
    os.environ |= {name: str(value) for name, value in variables.items()}
    sys.argv = ["program.py", f"--local_rank={rank}", *arguments]
    runpy.run_path(str(HERE / "program.py"), run_name="__main__")


def figures(program: str, run: str) -> dict[str, list[float]]:
    context = multiprocessing.get_context("fork")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        arguments = (port, program, run, "--figures", str(file))
        ranks = [context.Process(target=run_rank, args=(r, *arguments)) for r in range(RANKS)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        return json.loads(file.read_text())


def main() -> None:
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    for argument in sys.argv[1:] or RUNS:
        program, _, run = argument.partition("/")
        for package in PACKAGES[program]:
            importlib.import_module(package)
        found = golden(program) if run else {}
        for name in [run] if run else RUNS[program]:
            found[name] = figures(program, name)
        versions = {name: version(name) for name in (*VERSIONED, *PACKAGES[program])}
        text = json.dumps({"versions": versions, "runs": found}, indent=1)
        (GOLDEN / f"{program}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
