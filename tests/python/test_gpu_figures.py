"""bench/gpu/peers.py on a CPU: that it runs and says what it found, not how fast anything is."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from zerorun import _C


def run(root: Path, build: Path, *options: str) -> subprocess.CompletedProcess[str]:
    script = root / "bench" / "gpu" / "peers.py"
    command = [sys.executable, script, build / "bench" / "gpu" / "bench_gpu", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_both_sides_of_every_figure_that_a_cpu_has(root: Path, build: Path) -> None:
    tiny = "--model nano --large nano --batch 2 --seq_len 8 --rounds 1 --turns 1 --backend eager"
    job = run(root, build, "--device", "cpu", "--part", "rate", "offload", *tiny.split())
    assert job.returncode in {0, 4}, job.stderr
    figures = re.findall(r"(.*): [\d.]+ \(target at (?:least|most) [\d.]+: (\w+)\)", job.stdout)
    assert [name.partition(" ")[0] for name, _ in figures] == ["over", "over", "exposed"]
    missed = any(verdict == "MISSED" for _, verdict in figures)
    assert job.returncode == (4 if missed else 0)
    rates = [float(rate) for rate in re.findall(r"([\d.]+) tokens/s", job.stdout)]
    assert "with torch.compile" in job.stdout
    assert len(rates) == 2
    assert min(rates) > 0
    assert job.stdout.count(" ms") == 3


def test_where_nothing_compiles_pytorch_runs_without(root: Path, build: Path) -> None:
    tiny = "--model nano --batch 1 --seq_len 8 --rounds 1 --turns 1 --backend missing"
    job = run(root, build, "--device", "cpu", "--part", "rate", *tiny.split())
    assert job.returncode in {0, 4}, job.stderr
    assert "torch.compile failed: " in job.stdout
    assert ", not compiled: " in job.stdout


def test_the_peer_has_gpt2s_parameters(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(root / "bench" / "gpu")
    model = importlib.import_module("gpt2").Gpt2("gpt2", 50257, 1024)
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808


@pytest.mark.skipif(not _C.why_no_cuda(), reason="there is a GPU")
def test_without_a_gpu_it_exits_3(root: Path, build: Path) -> None:
    job = run(root, build, "--part", "bandwidth")
    assert job.returncode == 3, job.stdout
    assert "bench_gpu: CUDA" in job.stderr
