"""The real backend, with the real CUDA runtime in it, on drivers that it cannot use."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from zerorun import _C

NO_GPU, MISMATCH = 100, 803  # CUDA_ERROR_NO_DEVICE and CUDA_ERROR_SYSTEM_DRIVER_MISMATCH

pytestmark = pytest.mark.skipif(
    "no CUDA backend" in _C.why_no_cuda(), reason="this build has no CUDA backend"
)


def run(
    build: Path, version: int, init: int, *command: str | Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(build / "fake_cuda" / "old_driver"),
        "FAKE_DRIVER_VERSION": str(version),
        "FAKE_DRIVER_INIT": str(init),
        **variables,
    }
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize(
    ("version", "init", "problem"),
    [
        (11080, 0, "cudaErrorInsufficientDriver"),
        (12020, NO_GPU, "cudaErrorNoDevice"),  # the driver itself is new enough
        (12020, MISMATCH, "cudaErrorSystemDriverMismatch"),
        (13000, MISMATCH, "cudaErrorSystemDriverMismatch"),
    ],
)
def test_env_says_what_the_driver_is_for_and_what_is_wrong(
    build: Path, zerorun: Path, version: int, init: int, problem: str
) -> None:
    result = run(build, version, init, zerorun, "env")
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if line.startswith("CUDA ")]
    assert any(f"for CUDA {version // 1000}.{version % 1000 // 10}, " in line for line in lines)
    assert any("none is visible" in line and problem in line for line in lines), lines
    assert any(" cuBLAS" in line for line in lines), lines


@pytest.mark.parametrize(("version", "init"), [(11080, 0), (12020, MISMATCH)])
def test_train_does_not_compute_on_the_cpu_because_a_driver_fails(
    build: Path, tmp_path: Path, version: int, init: int
) -> None:
    train = [build / "libexec" / "zerorun" / "train", "--steps", "1", "--save", ""]
    train += ["--sample_tokens", "1", "--data", __file__]
    for accelerator in ("auto", "cuda"):
        result = run(build, version, init, *train, "--accelerator", accelerator)
        assert result.returncode != 0
        assert f"for CUDA {version // 1000}.{version % 1000 // 10}" in result.stderr
    hidden = run(build, version, init, *train, CUDA_VISIBLE_DEVICES="")
    assert hidden.returncode == 0, hidden.stderr
    assert "on cpu" in hidden.stdout + hidden.stderr


def test_without_a_gpu_a_driver_of_cuda_12_is_no_reason_not_to_train(build: Path) -> None:
    train = [build / "libexec" / "zerorun" / "train", "--steps", "1", "--save", ""]
    result = run(build, 12020, NO_GPU, *train, "--sample_tokens", "1", "--data", __file__)
    assert result.returncode == 0, result.stderr
