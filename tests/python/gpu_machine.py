"""A machine with a GPU for scripts/gpu_check and gpu_first: programs that only write down their
calls."""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ranks import ROOT, piped

PROGRAMS = ["bin/zerorun", "libexec/zerorun/train", "tests/test_gpu", "tests/test_gpu_train"]
PROGRAMS += ["bench/gpu/bench_gpu", "bench/train/bench_train"]
PROGRAMS += ["lib/libzerorun_cuda.so", "lib/libzerorun_train_cuda.so"]
SCRIPTS = ["gpu_check", "gpu_first", "gpu_pack.py", "gpu_run.py", "gpu_steps.py"]

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

# Scripts of the tree are programs, what holds a context is written down with its process, and the
# rest is Python.
PYTHON = f"""#!/bin/bash
case $* in
  *cuDevicePrimaryCtxRetain*)
    echo "context $$" >>"$CALLS"
    exec sleep 600
    ;;
  -c*torch*) exit 0 ;;
  *_on_gpu.py* | *bench/gpu/*.py*) source "${{BASH_SOURCE%/*}}/program" "$@" ;;
  *) exec {sys.executable} "$@" ;;
esac
"""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Machine:
    """A copy of the scripts in an empty tree, a GPU that nvidia-smi shows, and packed programs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "tests" / "gpu").mkdir(parents=True)
        (root / "scripts").mkdir()
        for file in [*(f"scripts/{name}" for name in SCRIPTS), "tests/gpu/same_losses.py"]:
            shutil.copy(ROOT / file, root / file)
        self.calls, self.tools, self.out = root / "calls", root / "tools", root / "out"
        smi = '#!/bin/sh\necho "NVIDIA H200, 9.0, 580.00"\n'
        tools = {"nvidia-smi": smi, "compute-sanitizer": PROGRAM, "program": PROGRAM}
        for name, text in (tools | {"python3": PYTHON}).items():
            write_program(self.tools / name, text)

    def change(self, script: str, old: str, new: str) -> None:
        path = self.root / "scripts" / script
        path.write_text(path.read_text().replace(old, new))

    def pack(self, programs: list[str] = PROGRAMS, program: str = PROGRAM) -> Path:
        folder, made = self.root / "packed", self.root / "made"
        for name in programs:
            write_program(made / name, program)
        (made / "commit").write_text("0123456789ab-dirty\n")
        folder.mkdir(exist_ok=True)
        with tarfile.open(folder / "programs.tar.gz", "w:gz") as archive:
            archive.add(made, ".")
        return folder

    def start(
        self,
        *options: object,
        script: str = "gpu_check",
        fail: str = "",
        losses: Mapping[str, object] = MappingProxyType({"--tf32": 5.501}),
        **variables: str,
    ) -> subprocess.Popen[str]:
        """In a process group of its own, as a shell starts it in a terminal. The script itself is
        run by this Python, and its steps by the one among the tools."""
        path = f"{self.tools}:{os.environ['PATH']}"
        own = {"PATH": path, "CALLS": str(self.calls), "FAIL": fail, "MESSAGE": "", "HANG": ""}
        own["LOSSES"] = "\n".join(f"{loss} {part}" for part, loss in losses.items())
        # A job in the background of a script ignores Ctrl-C, and so would its children.
        command = ["env", "--default-signal=INT", sys.executable, self.root / "scripts" / script]
        if "--python" not in options and "--pack" not in options:
            command += ["--python", "python3"]
        own = os.environ | own | variables
        return piped([*command, *options], env=own, start_new_session=True)

    def check(self, *options: object, **settings: Any) -> subprocess.CompletedProcess[str]:
        """What start() takes, to its end, with programs that were packed."""
        if not {"--prebuilt", "--pack", "--help"} & set(options):
            options = ("--prebuilt", self.pack(), *options)
        job = self.start("--out", self.out, *options, **settings)
        stdout, stderr = job.communicate()
        return subprocess.CompletedProcess(job.args, job.returncode, stdout, stderr)

    def report(self) -> str:
        return (self.out / "report.md").read_text()

    def archived(self) -> set[str]:
        with tarfile.open(self.out / "logs.tar.gz") as archive:
            return set(archive.getnames())
