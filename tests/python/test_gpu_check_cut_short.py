"""What scripts/gpu_check leaves where it does not come to its end."""

import os
import signal
import tarfile
from pathlib import Path

import pytest
from gpu_machine import PROGRAMS, Machine


@pytest.fixture
def machine(tmp_path: Path, root: Path) -> Machine:
    return Machine(tmp_path, root)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_check_ends_its_program_and_keeps_what_it_has(
    machine: Machine, number: signal.Signals
) -> None:
    folder = machine.pack(PROGRAMS)
    job = machine.start("--prebuilt", folder, "r.md", HANG="test_gpu_train", MESSAGE="half a suite")
    log = machine.root / "build" / "gpu_check" / "train_s_kernels.log"
    while not log.exists() or "half a suite" not in log.read_text():
        assert job.poll() is None, job.communicate()
    os.killpg(job.pid, number)  # as a terminal does
    stdout, _ = job.communicate(timeout=60)  # its programs would hold the pipe open
    assert job.returncode == 128 + number
    assert "- pass: device suite" in stdout
    assert "Interrupted in: train's kernels." in (machine.root / "r.md").read_text()
    with tarfile.open(machine.root / "r.md.tar.gz") as archive:
        assert {"r.md", str(log.relative_to(machine.root))} <= set(archive.getnames())


def test_the_archive_has_the_parts_before_a_kill(machine: Machine) -> None:
    with machine.start("--prebuilt", machine.pack(PROGRAMS), "r.md", HANG="nccl_calls") as job:
        while not machine.calls.exists() or "nccl_calls" not in machine.calls.read_text():
            assert job.poll() is None, job.communicate()
        timeout = int(Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text())
        job.kill()
    os.kill(timeout, signal.SIGTERM)
    with tarfile.open(machine.root / "r.md.tar.gz") as archive:
        assert "build/gpu_check/device_suite.log" in archive.getnames()


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


def test_figures_that_were_found_before_the_time_was_over_are_kept(machine: Machine) -> None:
    script = machine.root / "scripts" / "gpu_check"
    script.write_text(script.read_text().replace("minutes * 60", "minutes * 2"))  # seconds here
    options = ["--only", "figures", "--minutes", 1, "--prebuilt", machine.pack(PROGRAMS)]
    result = machine.check(*options, HANG="--part bandwidth", MESSAGE="AdamW: 2800 GB/s")
    assert "- not run: bandwidths: not at its end" in result.stdout
    assert "      AdamW: 2800 GB/s\n" in result.stdout
