"""bench/gpu/peers.py on a CPU: that it runs and says what it found, not how fast anything is."""

import gzip
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ranks import ran
from zerorun import _C

FIGURE = re.compile(r"(.*): [\d.]+ \(target at (?:least|most) [\d.]+: (\w+)\)")


@pytest.fixture
def run(
    root: Path, build: Path, torch_python: dict[str, str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    script, program = root / "bench" / "gpu" / "peers.py", build / "bench" / "gpu" / "bench_gpu"
    python = Path(torch_python["VIRTUAL_ENV"]) / "bin" / "python"
    return lambda *options: ran([python, script, program, *options])


def test_both_sides_of_every_figure_that_a_cpu_has(run: Callable[..., Any]) -> None:
    tiny = "--model nano --large nano --batch 2 --seq_len 8 --rounds 1 --turns 1 --backend eager"
    job = run("--device", "cpu", *tiny.split())
    assert job.returncode in {0, 4}, job.stderr
    figures = FIGURE.findall(job.stdout)
    kernels = [name.partition(" over copy")[0] for name, _ in figures if "over copy" in name]
    expected = [f"sum of squares {dtype}" for dtype in ("fp32", "bf16", "fp16")]
    assert kernels == [*expected, "AdamW, bf16 grad and param"]
    rest = [name.partition(" ")[0] for name, _ in figures if "over copy" not in name]
    assert rest == ["over", "over", *["exposed"] * 2]
    own = ("fill fp32", "add fp16 to fp32", "quantize bf16 to 4 bits", "dequantize 8 bits to bf16")
    steps = ("copy 100 tensors bf16", "decide", "trust ratios of 100 parameters")
    rows = ("layer norm, backward", "embedding", "embedding, backward", "weight gradient")
    for kernel in (*own, *steps, "8-bit AdamW", *rows):
        # A rate may be 0.0: how quick a busy machine is says nothing.
        assert re.search(f"^{kernel}[ ,].* [0-9.]+ (GB/s|ms)", job.stdout, re.MULTILINE), job.stdout
    missed = any(verdict == "MISSED" for _, verdict in figures)
    assert job.returncode == (4 if missed else 0)
    rates = [float(rate) for rate in re.findall(r"([\d.]+) tokens/s", job.stdout)]
    assert "with torch.compile" in job.stdout
    assert len(rates) == 3
    assert min(rates) > 0
    assert job.stdout.count(" ms\n") == 6 + 4 + 2 + 2
    for extra in ("what GELU adds", "what the bias gradient adds"):
        assert re.search(f"^{extra} +-?[0-9.]+ ms  a copy: [0-9.]+ ms$", job.stdout, re.MULTILINE)
    for layer in ("GELU", "GELU backward", "bias gradient"):
        other = r"as kernels of their own: [0-9.]+ ms, [0-9.]+ x"
        assert re.search(f"^{layer}, 1 x [0-9]+ to [0-9]+ +[0-9.]+ ms  {other}$", job.stdout, re.M)
    assert "12 blocks of width 64, stage 3, offload_optimizer nvme: " in job.stdout


def test_rates_are_printed_as_they_are_found(root: Path, tmp_path: Path) -> None:
    """So that those before a program is cut short are known."""
    program, go_on = tmp_path / "bench_gpu", tmp_path / "go_on"
    os.mkfifo(go_on)
    rate = "AdamW, bf16 grad and param    2800.0 GB/s   93.0 % of copy"
    program.write_text(f"#!/bin/sh\necho '{rate}'\nread line <{go_on}\necho the end\n")
    program.chmod(0o755)
    command = [sys.executable, root / "bench" / "gpu" / "peers.py", program, "--part", "bandwidth"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout.readline() == rate + "\n"
        assert "over copy: 0.93 (target at least 0.9: met)" in job.stdout.readline()
        go_on.write_text("\n")
        assert job.stdout.read() == "the end\n"
    assert job.returncode == 0


def test_where_nothing_compiles_pytorch_runs_without(run: Callable[..., Any]) -> None:
    tiny = "--model nano --batch 1 --seq_len 8 --rounds 1 --turns 1 --backend missing"
    job = run("--device", "cpu", "--part", "rate", *tiny.split())
    assert job.returncode in {0, 4}, job.stderr
    assert "torch.compile failed: " in job.stdout
    assert ", not compiled: " in job.stdout


def test_fast_attention_is_what_stands_beside_pytorch(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(root / "bench" / "gpu")
    monkeypatch.syspath_prepend(root / "bench")
    peers = importlib.import_module("gpu.peers")

    def bench_train(_options: object, *arguments: object) -> dict[str, dict[str, float]]:
        ms = 40.0 if "--fast_attention" in arguments else 44.0
        return {"step at stage 2": {"ms_min": ms, "tokens_per_s": 16384e3 / ms, "tflops": 300.0}}

    monkeypatch.setattr(peers, "bench_train", bench_train)
    monkeypatch.setattr(peers, "matmul_tflops", lambda _device: 600.0)
    monkeypatch.setattr(peers, "start_torch", lambda _options: (None, "PyTorch"))
    monkeypatch.setattr(peers, "least_ms", lambda *_: 46.0)
    options = SimpleNamespace(device="cuda", model="gpt2", batch=16, seq_len=1024, turns=2)
    options.rounds = 1
    peers.rate(options, peers.Targets({"matmul": 0.5, "pytorch": 1.1}))
    shown = capsys.readouterr().out
    assert "deterministic attention 372364 tokens/s, 300.0 TFLOP/s, 1.05 x PyTorch" in shown
    assert "fast attention 409600 tokens/s, 300.0 TFLOP/s, 1.15 x PyTorch" in shown
    assert "over PyTorch: 1.15 (target at least 1.1: met)" in shown


def test_the_peer_has_gpt2s_parameters(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(root / "bench" / "gpu")
    model = importlib.import_module("gpt2").Gpt2("gpt2", 50257, 1024)
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808


def test_a_hugging_face_model_beside_pytorch_and_fsdp2(
    root: Path, build: Path, transformers_python: dict[str, str], tmp_path: Path
) -> None:
    sides = ["torch", "fsdp2", "zerorun3"]
    tiny = "--device cpu --shape nano --batch 1 --seq_len 8 --rounds 1 --turns 1"
    script = root / "bench" / "gpu" / "hf.py"
    python = Path(transformers_python["VIRTUAL_ENV"]) / "bin" / "python"
    command = [python, script, "--build", build, "--trace", tmp_path, *tiny.split()]
    job = ran([*command, "--sides", *sides])
    assert job.returncode in {0, 4}, job.stderr
    assert re.findall(r"^(\w+) +[\d.]+ +[\d.]+ ", job.stdout, re.MULTILINE) == sides
    figures = FIGURE.findall(job.stdout)
    plans = [verdict for name, verdict in figures if name.endswith("own memory over plan")]
    assert plans == ["met"]
    assert len(figures) == 2
    missed = any(verdict == "MISSED" for _, verdict in figures)
    assert job.returncode == (4 if missed else 0)
    for side in sides:
        with gzip.open(tmp_path / f"trace_{side}.json.gz") as file:
            assert json.load(file)["traceEvents"]


class FakeNccl:
    """Calls take 20 questions on a communicator that does not block."""

    def __init__(self) -> None:
        self.questions, self.blocking, self.sums = 0, 1, []

    def functions(self) -> SimpleNamespace:
        return SimpleNamespace(
            ncclCommInitRankConfig=self.join,
            ncclAllReduce=self.all_reduce,
            ncclCommGetAsyncError=self.state,
        )

    def join(self, comm, ranks, unique, rank, config) -> int:
        config = config._obj
        assert (config.size, config.magic, config.version) == (24, 0xCAFEBEEF, 21400)
        assert (ranks.value, rank.value, bytes(unique)) == (2, 1, b"u" * 128)
        self.blocking = config.blocking
        return self._result()

    def all_reduce(self, *arguments) -> int:
        given, taken, numel, dtype, operation, _comm, stream = (a.value for a in arguments)
        assert given == taken
        self.sums.append((given, numel, dtype, operation, stream))
        return self._result()

    def state(self, comm, state) -> int:
        self.questions += 1
        state._obj.value = 7 if self.questions % 20 else 0
        return 0

    def _result(self) -> int:
        return 0 if self.blocking else 7


def test_calls_of_nccl_are_asked_for_their_end_unless_they_block(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(root / "bench" / "gpu")
    calls = importlib.import_module("nccl_calls")
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    tensor = torch.zeros(8)
    for blocking in (True, False):
        library = FakeNccl()
        nccl = calls.Nccl(library.functions(), 2, 1, b"u" * 128, blocking)
        assert calls.microseconds(nccl, tensor, 5) > 0
        assert set(library.sums) == {(tensor.data_ptr(), 8, 7, 0, 5)}
        made = len(library.sums) + 1  # and the communicator
        assert library.questions == (0 if blocking else 20 * made)
    with pytest.raises(RuntimeError, match="ncclAllReduce returned 3"):
        nccl.finish(3, "ncclAllReduce")


@pytest.mark.skipif(not _C.why_no_cuda(), reason="there is a GPU")
def test_without_a_gpu_it_exits_3(run: Callable[..., Any]) -> None:
    job = run("--part", "bandwidth")
    assert job.returncode == 3, job.stdout
    assert "bench_gpu: CUDA" in job.stderr
