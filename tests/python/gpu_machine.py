"""A machine with a GPU for scripts/gpu_check: programs that only write down their calls."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

PROGRAMS = [
    "bin/zerorun",
    "libexec/zerorun/train",
    "tests/test_gpu",
    "tests/test_gpu_train",
    "bench/gpu/bench_gpu",
    "bench/train/bench_train",
    "lib/libzerorun_cuda.so",
    "lib/libzerorun_train_cuda.so",
]

# Writes its call to $CALLS; where $FAIL is part of it, prints $MESSAGE and exits with $STATUS, and
# where $HANG is, prints it and does not end. train writes its losses: those of $LOSSES for parts of
# its call.
PROGRAM = """#!/bin/bash
echo "${0##*/} $*" >>"$CALLS"
[[ -z $KILLED ]] || exit 137
loss=5.5
while read -r other part; do [[ "$*" != *"$part"* ]] || loss=$other; done <<<"$LOSSES"
while (($#)); do
  if [[ $1 == --metrics ]]; then printf '{"step": 1, "loss": %s}' "$loss" >"$2"; fi
  call+=" $1"
  shift
done
[[ $call != " ckpt diff"* ]] || echo "${EQUAL-all values of all parameters are equal}"
if [[ -n $HANG && "${0##*/}$call" == *"$HANG"* ]]; then
  echo "$MESSAGE"
  exec sleep 600
fi
if [[ -n $FAIL && "${0##*/}$call" == *"$FAIL"* ]]; then
  echo "$MESSAGE"
  exit "${STATUS:-1}"
fi
"""

# What asks for PyTorch gets $TORCH_PROBLEM; scripts of the tree are programs, the rest is Python.
PYTHON = f"""#!/bin/bash
case $* in
  *"import torch"*) echo "$TORCH_PROBLEM" ;;
  *_on_gpu.py* | *bench/gpu/*.py*) source "${{BASH_SOURCE%/*}}/program" "$@" ;;
  *) exec {sys.executable} "$@" ;;
esac
"""

NVIDIA_SMI = """#!/bin/sh
case $1 in
  *name*) echo "NVIDIA H200, 9.0, 580.00" ;;
  *) echo 9.0 ;;
esac
"""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Machine:
    """A copy of the script in an empty tree, a GPU that nvidia-smi shows, and packed programs."""

    def __init__(self, root: Path, source: Path) -> None:
        self.root = root
        (root / "scripts").mkdir()
        (root / "tests" / "gpu").mkdir(parents=True)
        for file in ("scripts/gpu_check", "tests/gpu/same_losses.py"):
            shutil.copy(source / file, root / file)
        self.calls = root / "calls"
        self.tools = root / "tools"
        write_program(self.tools / "nvidia-smi", NVIDIA_SMI)
        write_program(self.tools / "compute-sanitizer", PROGRAM)
        write_program(self.tools / "program", PROGRAM)
        write_program(self.tools / "python3", PYTHON)

    def pack(self, programs: list[str]) -> Path:
        folder = self.root / "packed"
        folder.mkdir()
        with tarfile.open(folder / "programs.tar.gz", "w:gz") as archive:
            for program in programs:
                write_program(self.root / "made" / program, PROGRAM)
                archive.add(self.root / "made" / program, program)
        return folder

    def start(
        self,
        *options: object,
        fail: str = "",
        losses: Mapping[str, object] = MappingProxyType({"--tf32": 5.501}),
        **variables: str,
    ) -> subprocess.Popen[str]:
        """In a process group of its own, as a shell starts it in a terminal."""
        path = f"{self.tools}:{os.environ['PATH']}"
        own = {"PATH": path, "CALLS": str(self.calls), "FAIL": fail}
        own["LOSSES"] = "\n".join(f"{loss} {part}" for part, loss in losses.items())
        return subprocess.Popen(
            # A job in the background of a script ignores Ctrl-C, and so would its children.
            [
                "env",
                "--default-signal=INT",
                self.root / "scripts" / "gpu_check",
                *map(str, options),
            ],
            env=os.environ | {"TORCH_PROBLEM": "", "MESSAGE": "", "HANG": ""} | own | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def check(self, *options: object, **settings: Any) -> subprocess.CompletedProcess[str]:
        """What start() takes, to its end."""
        job = self.start(*options, **settings)
        stdout, stderr = job.communicate()
        return subprocess.CompletedProcess(job.args, job.returncode, stdout, stderr)
