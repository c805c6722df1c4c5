"""Where the tests find what ./dev has built, and how they are spread over processes."""

from collections.abc import Iterator
from pathlib import Path

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


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file stay in one process, which keeps what its fixtures made; parametrized files
    may say otherwise."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.name))
