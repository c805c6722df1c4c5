"""Hugging Face Trainer with two ranks for each sequence, against one process with whole ones."""

import json
from pathlib import Path

import pytest
from ranks import HERE, launch, passed


def test_trainer_has_the_figures_of_whole_sequences(
    build: Path, transformers_python: dict[str, str], tmp_path: Path
) -> None:
    found = {}
    for ranks in (1, 2):
        script = ["--no_local_rank", HERE / "ulysses_trainer.py", tmp_path, str(ranks)]
        passed(launch(build, ranks, *script, cwd=tmp_path, **transformers_python))
        found[ranks] = json.loads((tmp_path / f"{ranks}.json").read_text())
    assert len(found[1]["log"]) == 9  # losses and norms of four steps, and an evaluation
    assert found[2]["log"] == pytest.approx(found[1]["log"], rel=1e-4)
    assert found[1]["tokens"] == 2 * found[2]["tokens"]
