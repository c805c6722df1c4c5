"""scripts/gpu_check where there is no GPU: on programs that only write down their calls."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

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
# where $HANG is, does not end. train writes its losses: those of $LOSSES for parts of its call.
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
[[ -z $HANG || "${0##*/}$call" != *"$HANG"* ]] || exec sleep 600
if [[ -n $FAIL && "${0##*/}$call" == *"$FAIL"* ]]; then
  echo "$MESSAGE"
  exit "${STATUS:-1}"
fi
"""

# What asks for PyTorch gets $TORCH_PROBLEM; scripts of the tree are programs, the rest is Python.
PYTHON = f"""#!/bin/bash
case $* in
  *"import torch"*) echo "$TORCH_PROBLEM" ;;
  *torch_on_gpu.py* | *peers.py*) source "${{BASH_SOURCE%/*}}/program" "$@" ;;
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

    def check(
        self,
        *options: object,
        fail: str = "",
        losses: Mapping[str, object] = MappingProxyType({"--tf32": 5.501}),
        **variables: str,
    ) -> subprocess.CompletedProcess:
        path = f"{self.tools}:{os.environ['PATH']}"
        own = {"PATH": path, "CALLS": str(self.calls), "FAIL": fail}
        own["LOSSES"] = "\n".join(f"{loss} {part}" for part, loss in losses.items())
        return subprocess.run(
            [self.root / "scripts" / "gpu_check", *map(str, options)],
            env=os.environ | {"TORCH_PROBLEM": "", "MESSAGE": "", "HANG": ""} | own | variables,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path, root: Path) -> Machine:
    return Machine(tmp_path, root)


def test_without_a_gpu_it_exits_3(machine: Machine) -> None:
    write_program(machine.tools / "nvidia-smi", "#!/bin/sh\nexit 9\n")
    result = machine.check()
    assert result.returncode == 3
    assert "no NVIDIA GPU" in result.stderr


def test_runs_every_check_on_packed_programs(machine: Machine) -> None:
    result = machine.check("--prebuilt", machine.pack(PROGRAMS))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Everything that was run passed." in (machine.root / "build/gpu_check.md").read_text()
    calls = machine.calls.read_text()
    for call in (
        "test_gpu --gtest_filter=Devices/*",
        "test_gpu --gtest_filter=Transports/*",
        "test_gpu_train \n",
        "zerorun --accelerator cpu --num_gpus 2 train",
        "zerorun --accelerator cuda --num_gpus 2 train",
        "--accelerator cuda --num_gpus 2 train --config build/gpu_check/clipped_stage2.json",
        "--tf32\n",
        "--attention_workspace 0\n",
        "torch_on_gpu.py build/gpu_check/programs\n",
        "compute-sanitizer --tool racecheck",
        "peers.py build/gpu_check/programs/bench/gpu/bench_gpu --part bandwidth",
        "bench_gpu --part rate",
        "bench_gpu --part offload",
    ):
        assert call in calls
    # What tells most comes first.
    order = ["Devices/*", "test_gpu_train \n", "named_rank", "--tf32", "clipped_stage2"]
    order += ["torch_on_gpu", "Transports/*", "peers.py", "compute-sanitizer"]
    assert sorted(order, key=calls.index) == order
    trajectories, single = 2 * 2, 3  # dtypes, ranks; TF32, workspace, clipping
    through_nccl = 1 + 2 * 4 + 1  # a first one; 2 and 4 ranks at every stage; the killed one
    on_gpu = trajectories * 4 + single + through_nccl
    assert calls.count("--accelerator cuda --num_gpus") == on_gpu
    on_cpu = trajectories + 1 + 2  # clipped; beside NCCL
    assert calls.count("--save ") == on_gpu + on_cpu  # to nowhere
    bf16, clipped = (
        json.loads((machine.root / f"build/gpu_check/{name}.json").read_text())
        for name in ("bf16_stage3", "clipped_stage2")
    )
    assert bf16["bf16"] == {"enabled": True}
    assert bf16["zero_optimization"] == {"stage": 3}
    assert clipped["gradient_accumulation_steps"] == 2
    assert clipped["gradient_clipping"] > 0


GPU1, GPU2 = (f"cuda --num_gpus {ranks} train --config build/gpu_check" for ranks in (1, 2))


def test_losses_that_differ_by_rounding_pass(machine: Machine) -> None:
    losses = {f"{GPU2}/fp32": 5.5005, f"{GPU1}/bf16": 5.52, "--tf32": 5.52}
    options = ["--only", "trajectories", "--prebuilt", machine.pack(PROGRAMS)]
    result = machine.check(*options, losses=losses)
    assert result.returncode == 0, result.stdout


def test_losses_that_differ_by_more_are_failures(machine: Machine) -> None:
    losses = {
        f"{GPU1}/fp32_stage3": 5.501,
        f"{GPU1}/bf16_stage1": 5.52,
        "--tf32": 5.5,  # as without
        "--attention_workspace 0": 5.53,
        f"{GPU2}/clipped": "NaN",
    }
    options = ["--only", "trajectories", "--prebuilt", machine.pack(PROGRAMS)]
    result = machine.check(*options, losses=losses)
    assert result.returncode == 1
    expected = [
        "fp32 on 1 ranks of the GPU, stage 3, beside fp32 on 1 CPU ranks",
        "fp32 on 1 ranks of the GPU, stage 3, beside fp32 on 1 ranks of the GPU, stage 0",
        "bf16 on 1 ranks of the GPU, stage 1, beside bf16 on 1 ranks of the GPU, stage 0",
        "fp32 with --tf32 on the GPU, beside fp32 on 1 ranks of the GPU, stage 0",
        "bf16 with --attention_workspace 0 on the GPU, beside bf16 on 1 CPU ranks",
        "clipped on 2 ranks of the GPU, beside clipped on 2 CPU ranks",
    ]
    assert re.findall(r"- FAIL: losses: (.*) \(exit 1,", result.stdout) == expected


def test_a_cudnn_that_needs_its_workspace_is_no_failure(machine: Machine) -> None:
    message = "error: --attention_workspace: attention's backward takes 4 MiB"
    options = ["--only", "trajectories", "--prebuilt", machine.pack(PROGRAMS), "r.md"]
    result = machine.check(*options, fail="--attention_workspace 0", MESSAGE=message)
    assert result.returncode == 0, result.stdout
    report = (machine.root / "r.md").read_text()
    name = "train: bf16 with --attention_workspace 0 on the GPU"
    assert f"- not run: {name}: {message}" in report


def test_quick_leaves_out_what_takes_long(machine: Machine) -> None:
    result = machine.check("--quick", "--dry-run", "--prebuilt", machine.pack(PROGRAMS))
    assert result.returncode == 0
    assert "compute-sanitizer" not in result.stdout
    assert "bench" not in result.stdout
    assert "torch_on_gpu" in result.stdout


def test_only_the_parts_that_are_named_run(machine: Machine) -> None:
    folder = machine.pack(PROGRAMS)
    result = machine.check("--only", "sanitize,device", "--prebuilt", folder, "out/r.md")
    assert result.returncode == 0, result.stdout
    calls = [line for line in machine.calls.read_text().splitlines() if "env" not in line]
    assert len(calls) == 6
    assert calls[0] == "test_gpu --gtest_filter=Devices/*"
    assert "--only: got devices, expected" in machine.check("--only", "devices").stderr
    with tarfile.open(machine.root / "out/r.md.tar.gz") as archive:
        assert {"out/r.md", "build/gpu_check/device_suite.log"} <= set(archive.getnames())


def test_a_killed_rank_beside_nccl_has_to_end_the_job(machine: Machine) -> None:
    options = ["--only", "nccl", "--prebuilt", machine.pack(PROGRAMS)]
    name = "rank 1 of 2 killed, its status is the job's"
    assert f"- pass: {name}" in machine.check(*options).stdout
    program = machine.root / "made" / "bin" / "zerorun"
    write_program(program, PROGRAM.replace("exit 137", "true"))
    with tarfile.open(options[-1] / "programs.tar.gz", "w:gz") as archive:
        for file in PROGRAMS:
            archive.add(machine.root / "made" / file, file)
    result = machine.check(*options)
    assert result.returncode == 1
    assert f"- FAIL: {name}" in result.stdout


def test_without_pytorch_the_rest_is_run(machine: Machine) -> None:
    options = ["--only", "torch,figures", "--prebuilt", machine.pack(PROGRAMS), "r.md"]
    result = machine.check(*options, TORCH_PROBLEM="No module named 'torch'")
    assert result.returncode == 0, result.stdout
    report = (machine.root / "r.md").read_text()
    assert "- not run: PyTorch models: python3: No module named 'torch'" in report
    assert "Not run: PyTorch models; rate of train beside PyTorch." in report
    calls = machine.calls.read_text()
    assert "torch_on_gpu" not in calls
    assert "bench_gpu --part bandwidth" in calls


def test_a_sanitizer_that_may_not_see_the_device_is_no_failure(machine: Machine) -> None:
    message = "========= Error: Device not supported. Please refer to the documentation."
    options = ["--only", "sanitize", "--prebuilt", machine.pack(PROGRAMS), "r.md"]
    result = machine.check(*options, fail="--tool memcheck", MESSAGE=message)
    assert result.returncode == 0, result.stdout
    assert (
        f"- not run: compute-sanitizer memcheck: {message}" in (machine.root / "r.md").read_text()
    )
    result = machine.check(*options, fail="--tool memcheck", MESSAGE="Invalid __global__ write")
    assert result.returncode == 1


def test_figures_below_their_targets_are_shown_and_not_counted(machine: Machine) -> None:
    options = ["--only", "figures", "--prebuilt", machine.pack(PROGRAMS), "r.md"]
    missed = {"MESSAGE": "over copy: 0.80 (target at least 0.9: MISSED)", "STATUS": "4"}
    result = machine.check(*options, fail="--part bandwidth", **missed)
    assert result.returncode == 0, result.stdout
    report = (machine.root / "r.md").read_text()
    assert "- below a target: bandwidths (exit 4, " in report
    assert f"      {missed['MESSAGE']}\n" in report
    assert machine.check(*options, fail="--part bandwidth").returncode == 1


def test_the_report_has_what_ended_before_the_time_was_over(machine: Machine) -> None:
    folder = machine.pack(PROGRAMS)
    script = machine.root / "scripts" / "gpu_check"
    script.write_text(script.read_text().replace("minutes * 60", "minutes * 2"))  # seconds here
    result = machine.check("--minutes", 1, "--prebuilt", folder, "r.md", HANG="Devices/")
    assert result.returncode == 0, result.stdout
    report = (machine.root / "r.md").read_text()
    assert "- pass: unpacking " in report
    assert "- not run: device suite: not at its end after" in report
    assert "- not run: train's kernels: the 1 minutes were over (--minutes N)" in report
    assert "test_gpu_train" not in machine.calls.read_text()


def test_a_failure_is_in_the_report_and_the_rest_runs(machine: Machine) -> None:
    message = "norm_test.cc:7: Failure\nexpected 3, got 4" + "\n[  FAILED  ] one of many" * 40
    options = ["--only", "device,sanitize", "--prebuilt", machine.pack(PROGRAMS), "r.md"]
    result = machine.check(*options, fail="test_gpu_train", MESSAGE=message)
    assert result.returncode == 1
    report = (machine.root / "r.md").read_text()
    assert "- FAIL: train's kernels (exit 1" in report
    assert "expected 3, got 4" in report
    assert "Something failed." in report
    assert "compute-sanitizer" in machine.calls.read_text()


def test_two_ranks_that_nccl_refuses_do_not_count(machine: Machine) -> None:
    options = ["--only", "nccl", "--prebuilt", machine.pack(PROGRAMS)]
    result = machine.check(*options, fail="named_rank")
    assert result.returncode == 0, result.stdout
    assert "not counted" in result.stdout


def test_a_dry_run_names_every_command_and_runs_none(machine: Machine) -> None:
    result = machine.check("--dry-run", "--prebuilt", machine.pack(PROGRAMS))
    assert result.returncode == 0, result.stderr
    commands = re.findall(r"would run: .*: `(.*)`", result.stdout)
    assert len(commands) > 40
    path = f"{machine.tools}:{os.environ['PATH']}"
    for words in map(shlex.split, commands):
        program = next(
            word for word in words if word != "env" and not re.match("[A-Z_0-9]+=", word)
        )
        assert program.startswith("build/gpu_check/programs/") or shutil.which(program, path=path)
    assert " --save ''" in result.stdout
    assert "Nothing was run." in result.stdout
    assert not machine.calls.exists()


def test_programs_that_are_missing_are_named(machine: Machine) -> None:
    result = machine.check("--prebuilt", machine.pack(PROGRAMS[1:]))
    assert result.returncode == 1
    assert "bin/zerorun" in result.stderr


def test_python_is_the_one_whose_pytorch_sees_the_gpu(machine: Machine) -> None:
    write_program(machine.root / ".venv" / "bin" / "python", PYTHON)
    models = "tests/gpu/torch_on_gpu.py"
    assert f"`python3 {models}" in machine.check("--dry-run").stdout
    no_gpu = PYTHON.replace("case", "case $* in *is_available*) exit 1 ;; esac\ncase", 1)
    write_program(machine.tools / "python3", no_gpu)
    assert f"`.venv/bin/python {models}" in machine.check("--dry-run").stdout


def test_a_pack_has_the_package_for_the_python_that_is_named(machine: Machine) -> None:
    module = f"python/zerorun/_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    for file in [*PROGRAMS, module]:
        path = machine.root / "build" / "release" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shutil.which("true"), path)  # something to strip
    for file in ("__init__.py", "_C.pyi", "__pycache__/old.pyc"):
        write_program(machine.root / "python" / "zerorun" / file, "")
    cache = machine.root / "build" / "release" / "CMakeCache.txt"
    cache.write_text("ZERORUN_CUDA_ARCHITECTURES:STRING=80\n")
    refused = machine.check("--pack", "packed")
    assert refused.returncode == 1
    assert "is for GPUs of 80, expected 90: ZERORUN_CUDA_ARCHITECTURES=90" in refused.stderr
    cache.write_text("ZERORUN_CUDA_ARCHITECTURES:STRING=80;90\n")
    result = machine.check("--pack", "packed", "--python", "python3")
    assert result.returncode == 0, result.stderr
    assert "MiB for 80;90" in result.stdout
    assert Path(module).name in result.stdout
    with tarfile.open(machine.root / "packed" / "programs.tar.gz") as archive:
        files = {member.name.removeprefix("./") for member in archive if member.isfile()}
    package = {module, "python/zerorun/__init__.py", "python/zerorun/_C.pyi"}
    assert {file for file in files if not file.startswith("system/")} == package | set(PROGRAMS)


def test_help_is_no_wrong_call(machine: Machine) -> None:
    result = machine.check("--help")
    assert result.returncode == 0
    assert "--prebuilt DIR" in result.stdout
    assert not result.stderr


@pytest.mark.parametrize("options", [["--bogus"], ["--pack"], ["--minutes", "0"]])
def test_a_wrong_call_exits_2_with_the_usage(machine: Machine, options: list[str]) -> None:
    result = machine.check(*options)
    assert result.returncode == 2
    assert "--prebuilt DIR" in result.stderr
