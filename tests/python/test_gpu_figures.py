"""bench/gpu/peers.py on a CPU: that it runs and says what it found, not how fast anything is."""

import gzip

from prelude import *
from zerorun import _C

FIGURE = re.compile(r"(.*): [\d.]+ \(target at (?:least|most) [\d.]+: (\w+)\)")


def run(*options: str) -> Ended:
    script, program = ROOT / "bench" / "gpu" / "peers.py", BUILD / "bench" / "gpu" / "bench_gpu"
    python = Path(torch_python()["VIRTUAL_ENV"]) / "bin" / "python"
    return ran([python, script, program, *options])


def test_both_sides_of_every_figure_that_a_cpu_has() -> None:
    tiny = "--model nano --large nano --batch 2 --seq_len 8 --rounds 1 --turns 1 --backend eager"
    job = run("--device", "cpu", *tiny.split())
    assert job.returncode in {0, 4}, job.stderr
    figures = FIGURE.findall(job.stdout)
    kernels = [name.partition(" over copy")[0] for name, _ in figures if "over copy" in name]
    expected = [f"sum of squares {dtype}" for dtype in ("fp32", "bf16", "fp16")]
    assert kernels == [*expected, "AdamW, bf16 grad and param"]
    rest = [name.partition(" ")[0] for name, _ in figures if "over copy" not in name]
    assert rest == ["over", "over", *["exposed"] * 2]
    missed = any(verdict == "MISSED" for _, verdict in figures)
    assert job.returncode == (4 if missed else 0)
    rates = [float(rate) for rate in re.findall(r"([\d.]+) tokens/s", job.stdout)]
    assert "with torch.compile" in job.stdout
    assert len(rates) == 3
    assert min(rates) > 0
    for kernel in ("fill fp32", "decide", "trust ratios of 100 parameters", "8-bit AdamW"):
        # A rate may be 0.0: how quick a busy machine is says nothing.
        assert re.search(f"^{kernel}[ ,].* [0-9.]+ (GB/s|ms)", job.stdout, re.MULTILINE), job.stdout
    for line in ("what GELU adds ", "bias gradient, 1 x ", "12 blocks of width 64, stage 3, "):
        assert line in job.stdout


def test_where_nothing_compiles_pytorch_runs_without() -> None:
    tiny = "--model nano --batch 1 --seq_len 8 --rounds 1 --turns 1 --backend missing"
    job = run("--device", "cpu", "--part", "rate", *tiny.split())
    assert job.returncode in {0, 4}, job.stderr
    assert "torch.compile failed: " in job.stdout
    assert ", not compiled: " in job.stdout


def test_the_peer_has_gpt2s_parameters(monkeypatch: Patch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench" / "gpu")
    model = importlib.import_module("gpt2").Gpt2("gpt2", 50257, 1024)
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808


def test_a_hugging_face_model_beside_pytorch_and_fsdp2(tmp_path: Path) -> None:
    sides = ["torch", "fsdp2", "zerorun3"]
    tiny = "--device cpu --shape nano --batch 1 --seq_len 8 --rounds 1 --turns 1"
    script = ROOT / "bench" / "gpu" / "hf.py"
    python = Path(transformers_python()["VIRTUAL_ENV"]) / "bin" / "python"
    command = [python, script, "--build", BUILD, "--trace", tmp_path, *tiny.split()]
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


@pytest.mark.skipif(not _C.why_no_cuda(), reason="there is a GPU")
def test_without_a_gpu_it_exits_3() -> None:
    job = run("--part", "bandwidth")
    assert job.returncode == 3, job.stdout
    assert "bench_gpu: CUDA" in job.stderr
