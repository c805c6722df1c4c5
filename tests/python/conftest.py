"""Where the tests find what ./dev has built."""

from pathlib import Path

import pytest

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
