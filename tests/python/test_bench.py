"""The programs of bench/ start: nothing they import, and no name that they use at once, is gone."""

import os
from pathlib import Path

import pytest
from ranks import ran

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(path for path in (ROOT / "bench").rglob("*.py") if "__main__" in path.read_text())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_benchmark_tells_its_options(
    torch_python: dict[str, str], program: Path, tmp_path: Path
) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python = Path(torch_python["VIRTUAL_ENV"]) / "bin" / "python"
    job = ran([python, program, "--help"], cwd=tmp_path, env=variables, timeout=60)
    assert (job.returncode, job.stderr) == (0, "")
    assert job.stdout.startswith("usage: ")
