#!/usr/bin/env python3
"""Writes golden/PROGRAM.json: the figures of the programs here under real DeepSpeed.

    DS_ACCELERATOR=cpu PYTHONPATH=tests/python PYTHON tests/ecosystem/make_golden.py [NAME]...

NAME is PROGRAM, or PROGRAM/RUN, which joins the runs in the file. PYTHON has DeepSpeed besides
requirements-ecosystem.txt. The ranks are forks of this process, with the environment that
`deepspeed --num_gpus 2` gives them: what they import is imported once. DeepSpeed communicates
through Gloo; its own kernel for CPUs would first be compiled.
"""

import importlib
import json
import os
import runpy
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from ranks import forked
from runs import GOLDEN, HERE, PACKAGES, RANKS, RUNS, golden

VERSIONED = ("deepspeed", "torch", "transformers", "accelerate")


def run_rank(*arguments: str) -> None:
    os.environ |= {"LOCAL_SIZE": str(RANKS), "HF_HUB_OFFLINE": "1"}
    sys.argv = ["program.py", f"--local_rank={os.environ['RANK']}", *arguments]
    runpy.run_path(str(HERE / "program.py"), run_name="__main__")


def figures(program: str, run: str) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        forked(run_rank, RANKS, 29577, program, run, "--figures", str(file))
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
