"""What is public is what the list says, which a change of it has to touch."""

import json
import sys
from pathlib import Path

from ranks import environment, output_of

ROOT = Path(__file__).resolve().parents[2]
LIST = json.loads((ROOT / "tests" / "public_names.json").read_text())
COMMAND = "PYTHONPATH=build/release/python python scripts/public_names.py build/release/bin/zerorun"


def test_the_list_is_what_the_program_has(build: Path) -> None:
    script = [sys.executable, ROOT / "scripts" / "public_names.py", build / "bin" / "zerorun"]
    found = json.loads(output_of(*script, env=environment(build)))
    for name, known in LIST.items():
        gone, new = sorted(set(known) - set(found[name])), sorted(set(found[name]) - set(known))
        assert (gone, new) == ([], []), (
            f"{name}: see docs/compatibility.md; if this is meant: {COMMAND} --write"
        )
    assert found == LIST
    assert "zerorun.zero.safe_get_full_grad(param)" in LIST["python"]
    assert "engine.h: Engine" in LIST["headers"]
    assert "/zero_optimization/offload_optimizer/device" in LIST["keys"]
    assert {"train --save_every", "environment ZERORUN_JOB_SECRET"} <= set(LIST["commands"])
