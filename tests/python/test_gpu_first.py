"""scripts/gpu_first on programs that only write down their calls, and runs that are cut short."""

import importlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from gpu_machine import Machine, write_program
from ranks import passed


def verdicts(text: str) -> dict[str, str]:
    found = re.findall(r"^- ([\w ]+): (\w+)[ :]", text, re.MULTILINE)
    return {name: verdict for verdict, name in found}


def test_every_layer_runs_once_and_the_most_telling_steps_first(
    machine: Machine, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = passed(machine.check(script="gpu_first"))
    found = verdicts(result.stdout)
    assert set(found.values()) == {"pass"}
    references = {"fp32_cpu1_stage0", "bf16_cpu1_stage0", "fp32_cpu2_stage0"}
    monkeypatch.syspath_prepend(root / "scripts")
    first = importlib.import_module("gpu_steps").FIRST
    assert tuple(name for name in found if name not in references) == first
    assert set(found) == {*first, *references}
    # A machine that is there for 15 minutes has time for it, and for another run.
    table = importlib.import_module("gpu_steps").Table("", "", "")
    limits = [table.steps[name].limit for name in first]
    assert max(limits) <= 100
    assert min(limits) >= 20
    # The results are two files.
    assert sorted(path.name for path in machine.out.iterdir()) == ["logs.tar.gz", "report.md"]
    files = machine.archived()
    assert {"llama.log", "fp32_cpu2_stage0.jsonl", "fp32_stage3.json", "context.log"} <= files
    assert not any("/" in file for file in files)


def test_a_reference_that_fails_is_not_taken_for_the_gpu(machine: Machine) -> None:
    result = machine.check(
        "fp32_gpu1_stage0", script="gpu_first", fail="--accelerator cpu", MESSAGE="no docs"
    )
    found = verdicts(result.stdout)
    assert found["fp32_cpu1_stage0"] == "FAIL"
    assert set(found) == {"fp32_cpu1_stage0", "fp32_gpu1_stage0"}


def test_a_log_without_end_loses_its_middle(machine: Machine) -> None:
    flood = "#!/bin/bash\nyes 'NCCL WARN again' | head -c 3000000\necho the end\n"
    machine.check("--prebuilt", machine.pack(program=flood), "train_kernels", script="gpu_first")
    log = (machine.root / "build" / "gpu" / "logs" / "train_kernels.log").read_text()
    assert 1_000_000 < len(log) < 1_100_000
    assert log.startswith("NCCL WARN again")
    assert log.endswith("the end\n")


def test_in_a_trial_what_needs_a_gpu_says_that_there_is_none(machine: Machine) -> None:
    write_program(machine.tools / "nvidia-smi", "#!/bin/sh\nexit 9\n")
    says = "test_gpu: GPUs are asked for, but this host shows none (no /dev/nvidia*)"
    settings = {"script": "gpu_first", "fail": "Devices/*", "MESSAGE": says}
    result = machine.check("--trial", "device", **settings)
    assert result.returncode == 3
    assert f"- no GPU: device_kernels (0 s): {says}" in result.stdout
    assert verdicts(result.stdout)["train_kernels"] == "pass"
    settings["MESSAGE"] = "got 1, expected 2"
    assert machine.check("--trial", "device", **settings).returncode == 1


def test_a_report_has_what_zerorun_says_of_the_machine(machine: Machine) -> None:
    says = "GPUs  1 visible\\nCPUs  0-15\\nmemory  1 TiB\\n\\nenvironment variables\\n  RANK\\n"
    folder = machine.pack(program=f"#!/bin/bash\nprintf '{says}'\n")
    machine.check("--prebuilt", folder, "env", script="gpu_first")
    assert "      GPUs  1 visible\n      CPUs  0-15\n      memory  1 TiB\n" in machine.report()
    assert "RANK" not in machine.report()


def start_and_wait_for(machine: Machine, text: str, **settings: str) -> subprocess.Popen[str]:
    """Until this is in a log."""
    job = machine.start("--out", machine.out, "--prebuilt", machine.pack(), **settings)
    logs = machine.root / "build" / "gpu" / "logs"
    while not any(text in log.read_text() for log in logs.glob("*.log")):
        assert job.poll() is None, job.communicate()
        time.sleep(0.01)
    return job


@pytest.mark.parametrize("script", ["gpu_check", "gpu_first"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_program_and_keeps_what_it_has(
    machine: Machine, script: str, number: signal.Signals
) -> None:
    settings = {"script": script, "HANG": "test_gpu_train", "MESSAGE": "half a suite"}
    job = start_and_wait_for(machine, "half a suite", **settings)
    os.killpg(job.pid, number)  # as a terminal does
    stdout, _ = job.communicate(timeout=60)  # its programs would hold the pipe open
    assert job.returncode == 128 + number
    assert "- pass: device_kernels" in stdout
    assert re.search("^Interrupted in: .*train_kernels", machine.report(), re.MULTILINE)
    assert {"device_kernels.log", "train_kernels.log"} <= machine.archived()


def test_the_report_has_what_ended_before_the_time_was_over(machine: Machine) -> None:
    options = ["--seconds", 3, "train_kernels", "bandwidth", "comm"]
    passed(machine.check(*options, HANG="--part bandwidth", MESSAGE="AdamW: 2800 GB/s"))
    report = machine.report()
    assert "- pass: train_kernels" in report
    assert "- not run: bandwidth: not at its end after" in report
    assert "      AdamW: 2800 GB/s\n" in report
    assert "- not run: comm: the time was over (--seconds N)" in report
    assert "Transports/*" not in machine.calls.read_text()


def test_a_program_that_nothing_ends_does_not_hold_up_the_rest(machine: Machine) -> None:
    """What hangs in a driver ignores even SIGKILL; here, `timeout` itself does not end."""
    machine.limit_device_kernels()
    machine.change("gpu_run.py", "job.wait(limit + 10)", "job.wait(limit + 1)")
    (machine.tools / "timeout").write_text(
        """#!/bin/bash
[[ $* != *Devices/* ]] || exec sleep 20
exec /usr/bin/timeout "$@"
"""
    )
    (machine.tools / "timeout").chmod(0o755)
    result = machine.check("device")
    assert "- FAIL: device_kernels (hung: more than 1 s)" in result.stdout
    assert "- pass: train_kernels" in result.stdout
