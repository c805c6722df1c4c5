"""The files of cases, each on one and on two ranks."""

from pathlib import Path

import pytest
from ranks import CaseResults, cases_in

FILES = (
    "training",
    "optimizers",
    "sharded_optimizer",
    "zero",
    "placement",
    "checkpoints",
    "bad_input",
    "compat",
    "compat_engine",
)


@pytest.fixture(scope="module")
def results(build: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CaseResults]:
    return {file: CaseResults(build, file, tmp_path_factory.mktemp(file)) for file in FILES}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("file", "case"), [(file, c) for file in FILES for c in cases_in(file)])
def test_case(results: dict[str, CaseResults], file: str, case: str, ranks: int) -> None:
    results[file].check(case, ranks)
