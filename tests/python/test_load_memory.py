"""Host memory while a model is loaded: what is kept and one module, by bench/load.py."""

import sys
from pathlib import Path

import pytest
from ranks import ran

PROGRAM = Path(__file__).resolve().parents[2] / "bench" / "load.py"
LOADS = (
    *("init/3", "engine/3", "engine/0/fp32", "engine/3/offload"),
    *("shard/0", "shard/3", "train/0", "train/3"),
)
# 64 MiB, half of it one module. A busy machine adds up to 7, a load that keeps what it reads 64.
SIZE = ("--ranks", "2", "--megabytes", "40", "--width", "1024")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """Of each load in MiB: the largest sum over the ranks, what is kept, a module, the limit."""
    folder = tmp_path_factory.mktemp("load")
    job = ran([sys.executable, PROGRAM, *LOADS, *SIZE], cwd=folder, timeout=300)
    found = [line.split()[2:] for line in job.stdout.splitlines()[1:]]
    assert len(found) == len(LOADS), job.stdout + job.stderr
    return {load: list(map(int, row)) for load, row in zip(LOADS, found, strict=True)}


@pytest.mark.parametrize("load", LOADS)
def test_a_load_needs_what_is_kept_and_one_module(rows: dict[str, list[int]], load: str) -> None:
    largest_sum, kept, module, limit = rows[load]
    assert kept > module
    assert largest_sum <= limit
