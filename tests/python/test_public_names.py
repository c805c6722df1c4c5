"""What is public is what the list says, which a change of it has to touch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import environment

ROOT = Path(__file__).resolve().parents[2]
LIST = json.loads((ROOT / "tests" / "public_names.json").read_text())
COMMAND = "PYTHONPATH=build/release/python python scripts/public_names.py build/release/bin/zerorun"


def test_the_list_is_what_the_program_has(build: Path) -> None:
    script = [sys.executable, ROOT / "scripts" / "public_names.py", build / "bin" / "zerorun"]
    told = subprocess.run(
        script, env=environment(build, PATH=os.environ["PATH"]), capture_output=True, check=True
    )
    found = json.loads(told.stdout)
    for name, known in LIST.items():
        gone, new = sorted(set(known) - set(found[name])), sorted(set(found[name]) - set(known))
        assert (gone, new) == ([], []), (
            f"{name}: see docs/compatibility.md; if this is meant: {COMMAND} --write"
        )
    assert found == LIST


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("python", "zerorun.zero.safe_get_full_grad(param)"),
        ("headers", "engine.h: Engine"),
        ("keys", "/zero_optimization/offload_optimizer/device"),
        ("commands", "train --save_every"),
        ("commands", "environment ZERORUN_JOB_SECRET"),
    ],
)
def test_the_list_has_every_kind(kind: str, name: str) -> None:
    assert name in LIST[kind]
