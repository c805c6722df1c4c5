"""The files of cases, on two ranks, and some on one or four."""

from prelude import *
from rank_jobs import CaseResults, Forks

# On four ranks, models that are divided among them.
WIDE = ("sequence_sizes", "mesh", "mesh_dimensions", "dtensors", "experts", "compat_groups")
# What cases share, and what test_on_fake_gpu.py and test_hosts.py run.
OTHERS = {"models", "random_modules", "parts"}
OTHERS |= {"on_gpu", "loading_on_gpu", "quantized_updates"}
FILES = sorted({path.stem for path in (HERE / "cases").glob("[!_]*.py")} - OTHERS - set(WIDE))
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
    "random_programs",
)
# With a source that has imported Hugging Face's libraries, which takes seconds of each rank.
TRANSFORMERS = ("compat", "compat_surface", "host_cost", "logits", "muon", "sequence")
TRANSFORMERS += ("sequence_sizes", "streaming")
# Files, ranks and variables, by what stands behind the name. What runs again takes fewer steps.
AGAIN = {"CASE_STEPS": "4"}
RUNS: dict[str, tuple[Sequence[str], int, dict[str, str]]] = {
    "": (FILES, 2, {}),
    ", wide": (WIDE, 4, {}),
    ", alone": (ALONE, 1, AGAIN),
    ", private": (PRIVATE, 2, AGAIN | {"CASE_PRIVATE_MEMORY": "1"}),
}


@pytest.fixture(scope="module")
def results(forks: Forks, tmp_path_factory: Folders) -> dict[str, CaseResults]:
    python = {"VIRTUAL_ENV": os.environ["ZERORUN_TEST_TRANSFORMERS"]}
    found = {}
    for run, (files, _, variables) in RUNS.items():
        for file in files:
            own = variables | (python if file in TRANSFORMERS else {})
            folder = tmp_path_factory.mktemp(file)
            found[f"{file}{run}"] = CaseResults(forks, file, folder, variables=own)
    return found


CASES = [
    pytest.param(f"{file}{run}", case, ranks, marks=pytest.mark.xdist_group(f"{file}{run}"))
    for run, (files, ranks, _) in RUNS.items()
    for file in files
    for case in cases_in(file)
]


@each("file case ranks", *CASES)
def test_case(results: dict[str, CaseResults], file: str, case: str, ranks: int) -> None:
    results[file].check(case, ranks)
