"""Where the tests find what ./dev has built, and how they are spread over processes."""

import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_pool import RankPools

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def build() -> Path:
    """The release build."""
    return ROOT / "build" / "release"


@pytest.fixture(scope="session")
def zerorun(build: Path) -> Path:
    """The launcher."""
    return build / "bin" / "zerorun"


@pytest.fixture(scope="session")
def pools(build: Path) -> Iterator[RankPools]:
    """Jobs of ranks, for CaseResults."""
    pools = RankPools(build)
    yield pools
    pools.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints that DeepSpeed has saved, by make_deepspeed_checkpoints.py."""
    folder = tmp_path_factory.mktemp("deepspeed")
    archive = Path(__file__).parent / "data" / "deepspeed_checkpoints.tar.xz"
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder


@pytest.fixture
def small_training(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command in tmp_path, which has a text and a model.json; it ends with the test."""
    (tmp_path / "text").write_text("".join(f"{i * i} is the square of {i}\n" for i in range(500)))
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    (tmp_path / "model.json").write_text(json.dumps(shape))
    jobs = []

    def start(*words: object, **options: Any) -> subprocess.Popen[str]:
        job = subprocess.Popen(
            [str(word) for word in words],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        job.kill()
        job.communicate()


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file stay in one process, which keeps what its fixtures made; parametrized files
    may say otherwise. The group that took longest in the last run begins first."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.name))
    file = os.environ.get("ZERORUN_TEST_DURATIONS", os.devnull)
    known = json.loads(Path(file).read_text() or "{}").get("python", {})
    total: dict[str, float] = {}
    for item in items:
        module = item.nodeid.partition("::")[0].removesuffix(".py").replace("/", ".")
        group = group_of(item)
        total[group] = total.get(group, 0) + known.get(f"{module}::{item.name}", 0)
    items.sort(key=lambda item: -total[group_of(item)])


def group_of(item: pytest.Item) -> str:
    """What pytest-xdist gives to one process."""
    marker = item.get_closest_marker("xdist_group")
    assert marker is not None
    return str(marker.args[0] if marker.args else marker.kwargs["name"])
