"""transformers' from_pretrained(distributed_config=...), and its sharded files."""

from pathlib import Path

from ranks import launch
from runs import HERE, RANKS

BUILD = HERE.parents[1] / "build" / "release"


def test_models_are_adopted_and_their_files_are_read(tmp_path: Path) -> None:
    job = launch(BUILD, RANKS, HERE / "distributed_config.py", tmp_path, cwd=tmp_path)
    assert job.returncode == 0, job.stdout + job.stderr
    assert "as expected" in job.stdout
    assert (tmp_path / "adopted2" / "model.safetensors").exists()
