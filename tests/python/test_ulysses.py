"""Hugging Face Trainer with two ranks for each sequence has the figures of DeepSpeed."""

import json
from pathlib import Path

import pytest
from ranks import HERE, launch, passed

ECOSYSTEM = HERE.parent / "ecosystem"


def test_trainer_divides_sequences(
    build: Path, transformers_python: dict[str, str], tmp_path: Path
) -> None:
    program = [ECOSYSTEM / "program.py", "ulysses_trainer", "stage3"]
    script = ["--deepspeed_compat", *program, "--figures", tmp_path / "figures.json"]
    passed(launch(build, 2, *script, cwd=tmp_path, **transformers_python))
    found = json.loads((tmp_path / "figures.json").read_text())
    golden = json.loads((ECOSYSTEM / "golden" / "ulysses_trainer.json").read_text())
    expected = golden["runs"]["stage3"]
    assert found == {name: pytest.approx(values, rel=1e-4) for name, values in expected.items()}
