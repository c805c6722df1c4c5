"""cases/optimizers.py on one and on two ranks."""

from pathlib import Path

import pytest
from ranks import CaseResults, cases_in


@pytest.fixture(scope="module")
def results(build: Path, tmp_path_factory: pytest.TempPathFactory) -> CaseResults:
    return CaseResults(build, "optimizers", tmp_path_factory.mktemp("optimizers"))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", cases_in("optimizers"))
def test_optimizers(results: CaseResults, case: str, ranks: int) -> None:
    results.check(case, ranks)
