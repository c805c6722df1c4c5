"""scripts/gpu_check where there is no GPU: on programs that only write down their calls."""

import importlib
import json
import os
import re
import shlex
import shutil
import sysconfig
import tarfile
from pathlib import Path

import pytest
import torch
from gpu_machine import PROGRAM, PROGRAMS, PYTHON, Machine, write_program
from torch.nn import functional


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
        "failures_on_gpu.py memory build/gpu_check/programs\n",
        "failures_on_gpu.py gather build/gpu_check/programs\n",
        "zerorun --accelerator cuda --num_gpus 1 python3 bench/gpu/nccl_calls.py\n",
        "zerorun --accelerator cuda --num_gpus 2 python3 bench/gpu/nccl_calls.py\n",
        "hf.py --build build/gpu_check/programs --trace build/gpu_check\n",
        "ckpt diff build/gpu_check/first build/gpu_check/again\n",
        "compute-sanitizer --tool racecheck",
        "peers.py build/gpu_check/programs/bench/gpu/bench_gpu --part bandwidth",
        "bench_gpu --part rate",
        "bench_gpu --part offload",
        "bench_gpu --part wide",
    ):
        assert call in calls
    # What tells most comes first.
    order = ["Devices/*", "test_gpu_train \n", "named_rank", "gpu.py memory", "--tf32"]
    order += ["clipped_stage2", "ckpt diff", "all_on_disk", "torch_on_gpu", "Transports/*"]
    order += ["hf.py", "peers.py", "compute-sanitizer"]
    assert sorted(order, key=calls.index) == order
    trajectories, single = 2 * 2, 3 + 2  # dtypes, ranks; TF32, workspace, clipping; twice
    offloaded, calls_of_nccl = 4, 2
    through_nccl = 1 + 2 * 4 + 1  # a first one; 2 and 4 ranks at every stage; the killed one
    on_gpu = trajectories * 4 + single + through_nccl + offloaded
    assert calls.count("--accelerator cuda --num_gpus") == on_gpu + calls_of_nccl
    on_cpu = trajectories + 1 + 2 + 1  # clipped; beside NCCL; nothing offloaded
    saves = re.findall(r"--save (\S*)", calls)
    assert len(saves) == on_gpu + on_cpu
    assert set(saves) == {"", "build/gpu_check/first", "build/gpu_check/again"}
    bf16, clipped, on_disk = (
        json.loads((machine.root / f"build/gpu_check/{name}.json").read_text())
        for name in ("bf16_stage3", "clipped_stage2", "all_on_disk_stage3")
    )
    assert on_disk["zero_optimization"]["offload_param"]["device"] == "nvme"
    assert Path(on_disk["zero_optimization"]["offload_optimizer"]["nvme_path"]).is_absolute()
    assert bf16["bf16"] == {"enabled": True}
    assert bf16["zero_optimization"] == {"stage": 3}
    assert clipped["gradient_accumulation_steps"] == 2
    assert clipped["gradient_clipping"] > 0


def test_runs_of_one_configuration_that_differ_are_a_failure(machine: Machine) -> None:
    options = ["--only", "trajectories", "--prebuilt", machine.pack(PROGRAMS)]
    result = machine.check(*options, EQUAL="master of head.weight: 3 values differ")
    assert result.returncode == 1
    assert "- FAIL: the same run twice, bit for bit (exit 1" in result.stdout
    assert "3 values differ" in result.stdout
    result = machine.check(*options, losses={"--tf32": 5.501, "gpu_check/again": 5.500001})
    failed = re.findall(r"- FAIL: (.*) \(exit 1,", result.stdout)
    assert failed == ["losses: bf16 on the GPU, stage 3, again, beside bf16 on the GPU, stage 3"]


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
    assert "bench_gpu" not in result.stdout
    assert "hf.py" not in result.stdout
    assert "torch_on_gpu" in result.stdout


def test_only_the_parts_that_are_named_run(machine: Machine) -> None:
    folder = machine.pack(PROGRAMS)
    result = machine.check("--only", "sanitize,device", "--prebuilt", folder, "out/r.md")
    assert result.returncode == 0, result.stdout
    calls = [line for line in machine.calls.read_text().splitlines() if "env" not in line]
    assert len(calls) == 6
    assert calls[0] == "test_gpu --gtest_filter=Devices/*"
    calls = ["device,nccl,memory", "trajectories,offload,torch,comm", "hf", "figures", "sanitize"]
    dry = [
        machine.check("--dry-run", "--prebuilt", folder, "--only", parts).stdout.count("would run")
        for parts in calls
    ]
    unpacking = len(calls) - 1
    whole = machine.check("--dry-run", "--prebuilt", folder).stdout.count("would run")
    assert sum(dry) - unpacking == whole  # as the usage says
    assert all(f"--only {parts}" in machine.check("--help").stdout for parts in calls)
    assert "--only: got devices, expected" in machine.check("--only", "devices").stderr
    with tarfile.open(machine.root / "out/r.md.tar.gz") as archive:
        assert {"out/r.md", "build/gpu_check/device_suite.log"} <= set(archive.getnames())


def test_calls_for_other_parts_keep_their_reports(machine: Machine) -> None:
    folder = machine.pack(PROGRAMS)
    for parts in ("device", "comm,sanitize"):
        machine.check("--prebuilt", folder, "--only", parts)
    device, rest = (
        (machine.root / f"build/gpu_check_{name}.md").read_text()
        for name in ("device", "comm_sanitize")
    )
    assert "- pass: device suite" in device
    assert "device suite" not in rest
    assert "- pass: communicator suite" in rest


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


def test_without_transformers_its_part_is_not_run(machine: Machine) -> None:
    message = "ModuleNotFoundError: No module named 'transformers'"
    options = ["--only", "hf", "--prebuilt", machine.pack(PROGRAMS)]
    result = machine.check(*options, fail="hf.py", MESSAGE=f"torch failed:\n{message}")
    assert result.returncode == 0, result.stdout
    assert f"- not run: a Hugging Face model: {message}" in result.stdout


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
    refused = machine.check("--pack", "packed", "--python", "python3")
    assert refused.returncode == 1
    assert "of other sources or settings" in refused.stderr  # it would refuse the packed backend
    (cache.parent / "build_id.cc").write_text("of one build")
    result = machine.check("--pack", "packed", "--python", machine.tools / "python3")
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
    assert result.stdout.startswith("Checks the CUDA backend")
    assert "--prebuilt DIR" in result.stdout
    assert not result.stderr


@pytest.mark.parametrize(
    "options",
    [["--bogus"], ["--pack"], ["--minutes", "0"], ["--python", "python9"], ["a.md", "b.md"]],
)
def test_a_wrong_call_exits_2_with_the_usage(machine: Machine, options: list[str]) -> None:
    result = machine.check(*options)
    assert result.returncode == 2
    assert "--prebuilt DIR" in result.stderr


def losses_of_gpt2(make: type, activations: torch.dtype, text: bytes, steps: int) -> list[float]:
    """Of AdamW on fp32 masters with parameters in bf16, as `train` has them, and 4 x 128 tokens."""
    torch.manual_seed(0)
    model = make("nano", 256, 128).to(torch.bfloat16)  # parameters, as they are stored
    computes = make("nano", 256, 128).to(activations)
    masters = [parameter.detach().float() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-3, weight_decay=0.0)
    data = torch.tensor(list(text[: 128 * 4 * steps + 1]))
    losses = []
    for step in range(steps):
        part = data[512 * step : 512 * (step + 1) + 1]
        for own, stored in zip(computes.parameters(), model.parameters(), strict=True):
            own.detach().copy_(stored)
        computes.zero_grad()
        loss = computes(part[:-1].view(4, 128), part[1:].view(4, 128))
        loss.backward()
        losses.append(loss.item())
        for master, own in zip(masters, computes.parameters(), strict=True):
            master.grad = own.grad.bfloat16().float()
        optimizer.step()
        for master, stored in zip(masters, model.parameters(), strict=True):
            stored.detach().copy_(master)
    return losses


def test_activations_in_bf16_stay_far_within_the_bound(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AdamW turns the rounding of small gradients into whole steps; the losses hardly show it."""
    monkeypatch.syspath_prepend(root / "bench" / "gpu")
    gpt2 = importlib.import_module("gpt2")
    in_fp32 = functional.cross_entropy
    monkeypatch.setattr(  # as train sums losses
        gpt2.F, "cross_entropy", lambda logits, targets: in_fp32(logits.float(), targets)
    )
    script = (root / "scripts" / "gpu_check").read_text()
    bound = float(re.search(r"^readonly loose=(\S+)", script, re.MULTILINE)[1])
    text = (root / "ARCHITECTURE.md").read_bytes()
    cpu, gpu = (losses_of_gpt2(gpt2.Gpt2, kind, text, 8) for kind in (torch.float, torch.bfloat16))
    assert cpu[-1] < 0.9 * cpu[0]
    worst = max(abs(a - b) / a for a, b in zip(cpu, gpu, strict=True))
    assert 1e-6 < worst < bound / 10
