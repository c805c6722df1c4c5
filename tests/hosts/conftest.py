"""Hosts for a whole file of tests; skipped where a machine cannot have them."""

from collections.abc import Iterator

import pytest

from .namespaces import Hosts, missing


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if problem := missing():
        pytest.skip(problem)
    found = Hosts(tmp_path_factory.mktemp("hosts"))
    yield found
    found.close()
