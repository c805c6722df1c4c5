"""scripts/gpu_check where there is no GPU: on programs that only write down their calls."""

import importlib
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
from gpu_machine import PROGRAM, PROGRAMS, Machine, write_program
from ranks import passed
from torch.nn import functional


def test_without_a_gpu_it_exits_3(machine: Machine) -> None:
    write_program(machine.tools / "nvidia-smi", "#!/bin/sh\nexit 9\n")
    result = machine.check()
    assert result.returncode == 3
    assert "nvidia-smi finds no GPU" in result.stderr


def test_runs_every_check_on_packed_programs(machine: Machine) -> None:
    passed(machine.check())
    assert "Everything that was run passed." in machine.report()
    calls = machine.calls.read_text()
    programs = "build/gpu/programs"
    for call in (
        "zerorun env\n",
        "test_gpu --gtest_brief=1 --gtest_filter=Devices/*\n",
        "test_gpu --gtest_brief=1 --gtest_filter=Transports/*\n",
        "test_gpu_train --gtest_brief=1 --gtest_filter=*\n",
        "zerorun --accelerator cpu --num_gpus 2 train",
        "zerorun --accelerator cuda --num_gpus 2 train",
        "--accelerator cuda --num_gpus 2 train --config build/gpu/logs/clipped_stage2.json",
        "--tf32\n",
        "--attention_workspace 0\n",
        f"torch_on_gpu.py {programs}\n",
        f"failures_on_gpu.py memory {programs}\n",
        f"failures_on_gpu.py gather {programs}\n",
        f"--num_gpus 1 {machine.tools}/python3 bench/gpu/nccl_calls.py\n",
        f"--num_gpus 2 {machine.tools}/python3 bench/gpu/nccl_calls.py\n",
        f"hf.py --build {programs} --sides torch zerorun2 zerorun3 --rounds 4 --turns 1 --trace",
        f"hf.py --build {programs}\n",
        "ckpt diff build/gpu/logs/first build/gpu/logs/again\n",
        "compute-sanitizer --error-exitcode 9 --tool racecheck",
        *(f"{programs}/bench/gpu/bench_gpu --part {part}" for part in ("bandwidth", "rate")),
        *(f"{programs}/bench/gpu/bench_gpu --part {part}" for part in ("offload", "wide")),
    ):
        assert call in calls
    # What tells most comes first.
    order = ["Devices/*", "test_gpu_train ", "NCCL_HOSTID", "gpu.py memory", "--tf32"]
    order += ["clipped_stage2", "ckpt diff", "all_on_disk", "torch_on_gpu", "Transports/*"]
    order += ["hf.py", "bench_train", "peers.py", "compute-sanitizer"]
    on_gpu = "\n".join(line for line in calls.splitlines() if "--accelerator cpu" not in line)
    assert sorted(order, key=on_gpu.index) == order
    trajectories, single = 2 * 2, 3 + 2  # dtypes, ranks; TF32, workspace, clipping; twice
    offloaded, calls_of_nccl = 4, 2
    through_nccl = 2 * 4 + 1  # 2 and 4 ranks at every stage; the killed one
    trained = trajectories * 4 + single + through_nccl + offloaded
    assert calls.count("--accelerator cuda --num_gpus") == trained + calls_of_nccl
    references = trajectories + 2  # clipped; 4 ranks
    saves = re.findall(r"--save (\S*)", calls)
    assert len(saves) == trained + references
    assert set(saves) == {"", "build/gpu/logs/first", "build/gpu/logs/again"}
    # The texts of another machine would give other losses.
    assert calls.count("--data docs ") == len(saves)


def test_configs_have_what_their_names_say(machine: Machine) -> None:
    machine.check("device")
    bf16, clipped, on_disk = (
        json.loads((machine.root / f"build/gpu/logs/{name}.json").read_text())
        for name in ("bf16_stage3", "clipped_stage2", "all_on_disk_stage3")
    )
    assert on_disk["zero_optimization"]["offload_param"]["device"] == "nvme"
    folder = Path(on_disk["zero_optimization"]["offload_optimizer"]["nvme_path"])
    assert folder.is_absolute()
    assert folder.is_dir()
    assert bf16["bf16"] == {"enabled": True}
    assert bf16["zero_optimization"] == {"stage": 3}
    assert clipped["gradient_accumulation_steps"] == 2
    assert clipped["gradient_clipping"] > 0


def failed(result: subprocess.CompletedProcess[str]) -> list[str]:
    return re.findall(r"^- FAIL: (\S+) \(exit 1,", result.stdout, re.MULTILINE)


def test_runs_of_one_configuration_that_differ_are_a_failure(machine: Machine) -> None:
    result = machine.check("twice", EQUAL="master of head.weight: 3 values differ")
    assert result.returncode == 1
    assert failed(result) == ["twice"]
    assert "3 values differ" in result.stdout
    result = machine.check("twice", losses={"logs/first": 5.5, "logs/again": 5.500001})
    assert failed(result) == ["twice"]
    assert "(expected at most 0)" in result.stdout


GPU1, GPU2 = (f"cuda --num_gpus {ranks} train --config build/gpu/logs" for ranks in (1, 2))


def test_losses_that_differ_by_rounding_pass(machine: Machine) -> None:
    losses = {f"{GPU2}/fp32": 5.5005, f"{GPU1}/bf16": 5.52, "--tf32": 5.52}
    passed(machine.check("trajectories", losses=losses))


def test_losses_that_differ_by_more_are_failures(machine: Machine) -> None:
    losses = {
        f"{GPU1}/fp32_stage3": 5.501,
        f"{GPU1}/bf16_stage1": 5.502,
        "--tf32": 5.5,  # as without
        "--attention_workspace 0": 5.53,
        f"{GPU2}/clipped": "NaN",
    }
    result = machine.check("trajectories", losses=losses)
    assert result.returncode == 1
    expected = ["fp32_gpu1_stage3", "fp32_gpu1_stages", "bf16_gpu1_stages", "tf32"]
    assert failed(result) == [*expected, "attention_workspace", "clipped_gpu2_stage2"]


def test_only_what_is_named_runs(machine: Machine) -> None:
    passed(machine.check("sanitize", "train_kernels"))
    calls = machine.calls.read_text().splitlines()
    assert [call.split()[0] for call in calls if "context" not in call] == [
        *["compute-sanitizer"] * 4,
        "test_gpu_train",
    ]
    assert "memcheck_device.log" in machine.archived()
    refused = machine.check("devices")
    assert refused.returncode == 2
    assert "got devices, expected some of device nccl" in refused.stderr


def test_five_calls_run_everything(machine: Machine) -> None:
    text = machine.check("--help").stdout
    calls = re.search(r"these five do everything:\n\n(.*)\n", text)[1].strip().split("    ")
    assert len(calls) == 5
    steps = [
        set(re.findall("would run: (\\w+)", machine.check("--dry-run", *parts.split()).stdout))
        for parts in calls
    ]
    whole = re.findall("would run: (\\w+)", machine.check("--dry-run").stdout)
    assert len(whole) == len(set(whole)) >= 60
    assert set.union(*steps) == set(whole)


def test_calls_for_other_parts_keep_their_reports(machine: Machine) -> None:
    folder = machine.pack()
    for parts in (["device"], ["comm", "sanitize"]):
        machine.start("--prebuilt", folder, *parts).communicate()
    device, rest = (
        (machine.root / f"build/gpu_check_{name}/report.md").read_text()
        for name in ("device", "comm_sanitize")
    )
    assert "- pass: device_kernels" in device
    assert "- pass: device_kernels" not in rest
    assert "- pass: comm" in rest


def test_a_killed_rank_beside_nccl_has_to_end_the_job(machine: Machine) -> None:
    result = machine.check("killed")
    assert "- pass: killed" in result.stdout
    folder = machine.pack(program=PROGRAM.replace("exit 137", "true"))
    result = machine.check("--prebuilt", folder, "killed")
    assert result.returncode == 1
    assert failed(result) == ["killed"]


NO_WORKSPACE = "error: --attention_workspace: attention's backward takes 4 MiB"
NO_TORCH, NO_TRANSFORMERS = (
    f"ModuleNotFoundError: No module named '{name}'" for name in ("torch", "transformers")
)
NO_DEVICE = "========= Error: Device not supported. Please refer to the documentation."


@pytest.mark.parametrize(
    ("parts", "fail", "message", "step", "rest"),
    [
        ("trajectories", "--attention_workspace 0", NO_WORKSPACE, "attention_workspace", "tf32"),
        ("torch comm", "torch_on_gpu.py", NO_TORCH, "torch", "comm"),
        ("hf comm", "hf.py", f"torch failed:\n{NO_TRANSFORMERS}", "llama", "comm"),
        ("sanitize", "--tool memcheck", NO_DEVICE, "memcheck_device", "racecheck_device"),
    ],
)
def test_what_this_machine_cannot_do_is_not_run(
    machine: Machine, parts: str, fail: str, message: str, step: str, rest: str
) -> None:
    passed(machine.check(*parts.split(), fail=fail, MESSAGE=message))
    assert f"- not run: {step}: {message.splitlines()[-1]}" in machine.report()
    assert f"Not run: {step}" in machine.report()
    assert f"- pass: {rest}" in machine.report()


def test_a_sanitizer_that_fails_or_is_missing(machine: Machine) -> None:
    result = machine.check("sanitize", fail="--tool memcheck", MESSAGE="Invalid __global__ write")
    assert failed(result) == ["memcheck_device", "memcheck_train"]
    (machine.tools / "compute-sanitizer").unlink()
    assert "- not run: memcheck_train: bash: " in machine.check("memcheck_train").stdout


def test_figures_below_their_targets_are_shown_and_not_counted(machine: Machine) -> None:
    missed = {"MESSAGE": "over copy: 0.80 (target at least 0.9: MISSED)", "STATUS": "4"}
    passed(machine.check("figures", fail="--part bandwidth", **missed))
    assert f"- below a target: bandwidth (0 s)\n      {missed['MESSAGE']}\n" in machine.report()
    assert failed(machine.check("figures", fail="--part bandwidth")) == ["bandwidth"]


def test_a_failure_is_in_the_report_and_the_rest_runs(machine: Machine) -> None:
    message = "norm_test.cc:7: Failure\nexpected 3, got 4" + "\n[  FAILED  ] one of many" * 40
    result = machine.check("train_kernels", "comm", fail="test_gpu_train", MESSAGE=message)
    assert result.returncode == 1
    report = machine.report()
    assert (
        "- FAIL: train_kernels (exit 1, 0 s); `build/gpu/programs/tests/test_gpu_train " in report
    )
    assert "expected 3, got 4" in report
    assert "Something failed." in report
    assert "- pass: comm" in report


def test_ranks_that_nccl_refuses_do_not_count_and_other_failures_do(machine: Machine) -> None:
    message = "rank-0:7 [0] init.cc:903 NCCL WARN Duplicate GPU detected : rank 0 and rank 1"
    result = passed(machine.check("nccl", fail="NCCL_HOSTID", MESSAGE=message))
    assert f"- not run: fp32_nccl2_stage0: {message}" in result.stdout
    assert result.stdout.count("- not run:") == 2 * 4
    message = "rank-0:7 [0] NCCL INFO Bootstrap\nncclCommSplit failed: invalid argument"
    result = machine.check("nccl", fail="NCCL_HOSTID", MESSAGE=message)
    assert result.returncode == 1
    assert len(failed(result)) == 2 * 4
    assert "invalid argument" in result.stdout
    assert "Bootstrap" not in result.stdout
    assert "- pass: nccl_calls2" in result.stdout


def test_a_dry_run_names_every_command_and_runs_none(machine: Machine) -> None:
    result = passed(machine.check("--dry-run"))
    commands = re.findall(r"^- would run: \w+: `(.*?)`$", result.stdout, re.MULTILINE | re.DOTALL)
    assert len(commands) >= 60
    for command in commands:
        assert subprocess.run(["bash", "-n", "-c", command], check=False).returncode == 0
    assert " --save ''" in result.stdout
    assert "Nothing was run." in result.stdout
    assert not machine.calls.exists()
    assert not machine.out.exists()


def test_programs_that_are_missing_are_named(machine: Machine) -> None:
    result = machine.check("--prebuilt", machine.pack(PROGRAMS[1:]))
    assert result.returncode == 1
    assert "bin/zerorun" in result.stderr


def test_nvidia_smi_need_not_be_on_the_path(machine: Machine) -> None:
    """/usr/local/nvidia/bin is not on the path of every container."""
    hidden = machine.root / "nvidia"
    machine.change("gpu_run.py", "/usr/local/nvidia/bin", str(hidden))
    hidden.mkdir()
    (machine.tools / "nvidia-smi").rename(hidden / "nvidia-smi")
    assert machine.check("train_kernels").returncode == 0
    assert "NVIDIA H200" in machine.report()


def test_a_context_stays_open_as_long_as_steps_run(machine: Machine) -> None:
    machine.check("train_kernels", "torch")
    process = int(re.search(r"^context (\d+)$", machine.calls.read_text(), re.MULTILINE)[1])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_help_is_no_wrong_call(machine: Machine) -> None:
    result = passed(machine.check("--help"))
    assert "Checks the CUDA backend" in result.stdout
    assert "--prebuilt DIR" in result.stdout
    assert not result.stderr


@pytest.mark.parametrize(
    "options",
    [["--bogus"], ["--seconds", "0"], ["--seconds", "1.5"], ["--python", "python9"], ["a.md"]],
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
    monkeypatch.syspath_prepend(root / "scripts")
    bound = importlib.import_module("gpu_steps").LOOSE
    text = (root / "ARCHITECTURE.md").read_bytes()
    cpu, gpu = (losses_of_gpt2(gpt2.Gpt2, kind, text, 8) for kind in (torch.float, torch.bfloat16))
    assert cpu[-1] < 0.9 * cpu[0]
    worst = max(abs(a - b) / a for a, b in zip(cpu, gpu, strict=True))
    assert 1e-6 < worst < bound / 10
