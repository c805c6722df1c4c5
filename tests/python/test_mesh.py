"""Models that are divided among four ranks."""

import pytest
from rank_pool import CaseResults, RankPools
from ranks import cases_in

FILES = ("mesh", "mesh_dimensions", "dtensors", "experts", "compat_groups")
RANKS = 4


@pytest.fixture(scope="module")
def results(pools: RankPools, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CaseResults]:
    return {file: CaseResults(pools, file, tmp_path_factory.mktemp(file)) for file in FILES}


@pytest.mark.parametrize(
    ("file", "case"),
    [
        pytest.param(file, case, marks=pytest.mark.xdist_group(f"{file} on {RANKS}"))
        for file in FILES
        for case in cases_in(file)
    ],
)
def test_case(results: dict[str, CaseResults], file: str, case: str) -> None:
    results[file].check(case, RANKS)
