"""scripts/gpu_check where there is no GPU: on programs that only write down their calls."""

import os
import re
import subprocess

import pytest
from gpu_machine import PROGRAM, Machine, write_program
from ranks import passed


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
        "zerorun --accelerator cpu --num_gpus 2 train",
        "--accelerator cuda --num_gpus 2 train --config build/gpu/logs/clipped_stage2.json",
        "--attention_workspace 0\n",
        f"failures_on_gpu.py gather {programs}\n",
        *(f"--num_gpus {n} {machine.tools}/python3 bench/gpu/nccl_calls.py\n" for n in (1, 2)),
        f"hf.py --build {programs} --sides torch zerorun2 zerorun3 --rounds 4 --turns 1 --trace",
        "ckpt diff build/gpu/logs/first build/gpu/logs/again\n",
        "compute-sanitizer --error-exitcode 9 --tool racecheck",
        *(f"bench_gpu --part {part}" for part in ("bandwidth", "rate", "offload", "wide")),
    ):
        assert call in calls
    # What tells most comes first.
    order = ["Devices/*", "test_gpu_train ", "NCCL_HOSTID", "gpu.py memory", "--tf32"]
    order += ["clipped_stage2", "ckpt diff", "all_on_disk", "torch_on_gpu", "Transports/*"]
    order += ["hf.py", "bench_train", "peers.py", "compute-sanitizer"]
    on_gpu = "\n".join(line for line in calls.splitlines() if "--accelerator cpu" not in line)
    assert sorted(order, key=on_gpu.index) == order
    saves = re.findall(r"--save (\S*)", calls)
    assert len(saves) > 30
    assert set(saves) == {"", "build/gpu/logs/first", "build/gpu/logs/again"}
    # The texts of another machine would give other losses.
    assert calls.count("--data docs ") == len(saves)


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


def test_losses_that_differ_by_more_than_rounding_are_failures(machine: Machine) -> None:
    losses = {f"{GPU2}/fp32": 5.5005, f"{GPU1}/bf16": 5.52, "--tf32": 5.52}
    passed(machine.check("trajectories", losses=losses))
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
    names = [call.split()[0] for call in calls if "context" not in call]
    assert names == [*["compute-sanitizer"] * 4, "test_gpu_train"]
    assert "memcheck_device.log" in machine.archived()
    refused = machine.check("devices")
    assert refused.returncode == 2
    assert "got devices, expected some of device nccl" in refused.stderr


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
    assert "- FAIL: train_kernels (exit 1, 0 s); `" in report
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


def test_a_context_stays_open_as_long_as_steps_run(machine: Machine) -> None:
    machine.check("train_kernels", "torch")
    process = int(re.search(r"^context (\d+)$", machine.calls.read_text(), re.MULTILINE)[1])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.parametrize(
    "options",
    [["--bogus"], ["--seconds", "1.5"], ["--python", "python9"], ["a.md"]],
)
def test_a_wrong_call_exits_2_with_the_usage(machine: Machine, options: list[str]) -> None:
    result = machine.check(*options)
    assert result.returncode == 2
    assert "--prebuilt DIR" in result.stderr
