"""The memory of a host that loads a model: no more than what is kept and one module."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
import load

MEGABYTES, RANKS = 100, 2
SLACK = 12 << 20  # of each rank: pieces of 8 MiB, and what an import has left


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int]]:
    """The folder and the bytes of the largest module of each model."""
    made = {}
    for way in ("shard", "train"):
        folder = tmp_path_factory.mktemp(way)
        made[way] = folder, load.make_model(folder, way, MEGABYTES)
    return made


@pytest.mark.parametrize(
    ("way", "stage"),
    [("init", 3), ("engine", 3), ("shard", 0), ("shard", 3), ("train", 0), ("train", 3)],
)
def test_a_load_takes_what_is_kept_and_one_module(
    models: dict[str, tuple[Path, int]], way: str, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder, module = models["train" if way == "train" else "shard"]
    got = load.measure(way, RANKS, stage, folder)
    modules = RANKS if way == "init" else 1  # the program sees the whole module on every rank
    assert got.kept > 50 << 20, got
    assert got.peak <= got.kept + modules * module + RANKS * SLACK, got
