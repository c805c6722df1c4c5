"""cases/training.py on one and on two ranks."""

from pathlib import Path

import pytest
from ranks import CaseResults, cases_in


@pytest.fixture(scope="module")
def results(build: Path, tmp_path_factory: pytest.TempPathFactory) -> CaseResults:
    return CaseResults(build, "training", tmp_path_factory.mktemp("training"))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", cases_in("training"))
def test_training(results: CaseResults, case: str, ranks: int) -> None:
    results.check(case, ranks)
