"""Every kind of adapter of PEFT's has the losses of a single process, whatever checkpoints it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import launch
from runs import HERE, RANKS

pytest.importorskip("peft")
BUILD = HERE.parents[1] / "build" / "release"
TOLERANCE = 1e-4  # a batch on two ranks is rounded otherwise; the largest of these was 6e-6


def test_adapters_follow_pytorch(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    file = tmp_path / "figures.json"
    script = ["--no_local_rank", HERE / "peft_kinds.py", file]
    job = launch(BUILD, RANKS, "--deepspeed_compat", *script, cwd=tmp_path)
    assert job.returncode == 0, job.stdout + job.stderr
    found = json.loads(file.read_text())
    record_property("largest_differences", json.dumps(found))  # for docs/ecosystem.md
    assert found
    assert {run: figure for run, figure in found.items() if not figure <= TOLERANCE} == {}
