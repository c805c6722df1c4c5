"""The files of cases, on two ranks, and some on one or four."""

import pytest
from rank_pool import CaseResults, RankPools
from ranks import cases_in

FILES = (
    "training",
    "autocast",
    "host_cost",
    "updates",
    "compiled",
    "accumulation",
    "numbers",
    "written_values",
    "mixed_norms",
    "packed_weights",
    "saved_dtypes",
    "silence",
    "streaming",
    "logits",
    "clipping",
    "optimizers",
    "muon",
    "optimizer_states",
    "sharded_optimizer",
    "zero",
    "native",
    "pytorch_page",
    "gathering",
    "unusual_modules",
    "lifecycle",
    "loading",
    "sequence",
    "placement",
    "shard_groups",
    "adoption",
    "checkpoints",
    "torch_states",
    "node_local",
    "untrusted",
    "interchange",
    "deepspeed_files",
    "bad_input",
    "compat",
    "compat_attributes",
    "compat_engine",
    "compat_optimizer",
    "compat_runtime",
    "compat_details",
    "compat_surface",
    "compat_tools",
    "compat_elasticity",
    "metrics",
    "step_times",
)

# Again on one rank, where nothing is sent and a shard is the whole.
ALONE = (
    "training",
    "numbers",
    "packed_weights",
    "clipping",
    "optimizers",
    "optimizer_states",
    "zero",
    "native",
    "lifecycle",
    "loading",
    "placement",
    "checkpoints",
    "compat_engine",
)

WIDE = ("sequence_sizes",)  # on four ranks

# Again at stage 3 alone, with memory of each rank's own for full parameters, as on GPUs.
PRIVATE = (
    "training",
    "autocast",
    "host_cost",
    "compiled",
    "accumulation",
    "clipping",
    "optimizers",
    "zero",
    "gathering",
    "unusual_modules",
    "mixed_norms",
    "lifecycle",
    "loading",
)


@pytest.fixture(scope="module")
def results(pools: RankPools, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CaseResults]:
    files = (*FILES, *WIDE)
    shared = {file: CaseResults(pools, file, tmp_path_factory.mktemp(file)) for file in files}
    variables = {"CASE_PRIVATE_MEMORY": "1"}
    return shared | {
        f"{file}, private": CaseResults(
            pools, file, tmp_path_factory.mktemp(f"private-{file}"), variables=variables
        )
        for file in PRIVATE
    }


CASES = [
    pytest.param(file, case, ranks, marks=pytest.mark.xdist_group(f"{file} on {ranks}"))
    for ranks, files in ((2, FILES), (1, ALONE), (4, WIDE))
    for file in files
    for case in cases_in(file)
]
CASES += [
    pytest.param(f"{file}, private", case, 2, marks=pytest.mark.xdist_group(f"private {file}"))
    for file in PRIVATE
    for case in cases_in(file)
]


@pytest.mark.parametrize(("file", "case", "ranks"), CASES)
def test_case(results: dict[str, CaseResults], file: str, case: str, ranks: int) -> None:
    results[file].check(case, ranks)
