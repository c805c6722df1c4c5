"""What scripts/gpu_check and gpu_first leave where they do not come to their end."""

import os
import re
import signal
import subprocess
import time

import pytest
from gpu_machine import Machine
from ranks import passed


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
