"""The files of cases, each on one and on two ranks."""

import pytest
from rank_pool import CaseResults, RankPools
from ranks import cases_in

FILES = (
    "training",
    "accumulation",
    "optimizers",
    "sharded_optimizer",
    "zero",
    "native",
    "pytorch_page",
    "sequence",
    "placement",
    "checkpoints",
    "untrusted",
    "bad_input",
    "compat",
    "compat_engine",
)


@pytest.fixture(scope="module")
def results(pools: RankPools, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CaseResults]:
    return {file: CaseResults(pools, file, tmp_path_factory.mktemp(file)) for file in FILES}


CASES = [
    pytest.param(file, case, ranks, marks=pytest.mark.xdist_group(f"{file} on {ranks}"))
    for ranks in (2, 1)
    for file in FILES
    for case in cases_in(file)
]


@pytest.mark.parametrize(("file", "case", "ranks"), CASES)
def test_case(results: dict[str, CaseResults], file: str, case: str, ranks: int) -> None:
    results[file].check(case, ranks)
