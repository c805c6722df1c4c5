"""Host memory while a model is loaded: what is kept and one module, by bench/load.py."""

import sys
from pathlib import Path

import pytest
from ranks import ran

PROGRAM = Path(__file__).resolve().parents[2] / "bench" / "load.py"


LOADS = (
    *("init 3", "engine 3", "shard 0", "shard 3", "train 0", "train 3"),
    *("engine 0 --dtype fp32", "engine 3 --offload"),
)


@pytest.mark.parametrize("load", LOADS)
def test_a_load_needs_what_is_kept_and_one_module(load: str, tmp_path: Path) -> None:
    way, stage, *options = load.split()
    # Modules of 32 MiB: a busy machine adds up to 7 MiB, a load that keeps what it has read 100.
    size = ["--ranks", "2", "--megabytes", "100", "--width", "1024"]
    command = [sys.executable, PROGRAM, "--ways", way, "--stages", stage, *options, *size]
    job = ran(command, cwd=tmp_path, timeout=300)
    assert job.returncode == 0, job.stdout + job.stderr
