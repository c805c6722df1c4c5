"""Cases of PyTorch models on a GPU that is not there: see fake_torch_cuda.py."""

import fake_torch_cuda
from prelude import *
from rank_jobs import CaseResults, Forks
from zerorun import _C

# What differs most between devices. All other cases of these files pass as well, but for modules
# that some ranks skip, whose gathers at stage 3 need memory that the ranks share, and models on the
# meta device, which PyTorch's fake does not have.
CASES = {
    "on_gpu": cases_in("on_gpu"),
    "loading_on_gpu": cases_in("loading_on_gpu"),
    "loading": [case for case in cases_in("loading") if "contiguous" not in case],
    "updates": cases_in("updates"),
    "training": [
        "case_all_stages_equal_torch_and_each_other",
        "case_reentrant_checkpointing_of_a_shared_block",
        "case_frozen_parameters_have_no_gradient_or_optimizer_bytes",
    ],
    "optimizers": ["case_optimizers_of_torchs_run_on_shards"],
    "zero": [
        "case_only_the_modifiers_changes_are_kept",
        "case_a_change_reaches_the_master_copy",
        "case_states_are_torchs",
        "case_destroy_returns_all_bytes",
        "case_several_engines_one_without_optimizer",
    ],
    "gathering": [
        "case_changes_without_a_modifier_end_with_the_block",
        "case_frozen_parameters_are_full_for_a_recomputation",
    ],
    "lifecycle": ["case_frozen_values_are_the_same_bits"],
    "placement": [
        "case_offloading_changes_no_number",
        "case_changes_of_gathered_parameters_reach_what_rests_elsewhere",
    ],
    "checkpoints": [
        "case_any_stage_continues_what_any_other_saved",
        "case_a_load_that_is_not_strict_takes_what_both_have",
        "case_the_whole_model_on_rank_zero",
        "case_buffers_are_saved",
    ],
}
JOBS = [(file, 2, "exchange_api") for file in CASES]
JOBS += [("loading_on_gpu", 1, "exchange_api"), ("on_gpu", 1, "function")]

HAS_NONE = "no CUDA backend" in _C.why_no_cuda()
pytestmark = pytest.mark.skipif(HAS_NONE, reason="this build has no CUDA backend to put on a fake")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: Folders) -> dict[str, dict[str, str]]:
    """A job's variables, by the way to tell PyTorch's stream."""
    return {
        streams: fake_torch_cuda.make_package(tmp_path_factory.mktemp("package"), streams)
        for streams in ("exchange_api", "function")
    }


@pytest.fixture(scope="module")
def results(forks: Forks, packages: Any, tmp_path_factory: Folders) -> Any:
    return {
        (file, streams): CaseResults(forks, file, tmp_path_factory.mktemp(file), cases, variables)
        for streams, variables in packages.items()
        for file, cases in CASES.items()
    }


@each(
    "file ranks streams case",
    *[
        pytest.param(*job, case, marks=pytest.mark.xdist_group(f"{job} on a GPU"))
        for job in JOBS
        for case in CASES[job[0]]
    ],
)
def test_case_on_a_gpu(results: Any, file: str, ranks: int, streams: str, case: str) -> None:
    results[file, streams].check(case, ranks)


@pytest.fixture
def variables(forks: Forks, packages: dict[str, dict[str, str]]) -> dict[str, str]:
    return forks.with_python(packages["exchange_api"])


@each(
    "check ranks told",
    ("torch_on_gpu.py", 1, 24),
    ("torch_on_gpu.py", 2, 24),
    ("failures_on_gpu.py memory", 1, 8),
    ("failures_on_gpu.py gather", 2, 2),
)
def test_the_checks_of_a_real_gpu_pass(variables: Any, check: str, ranks: int, told: int) -> None:
    script = f"{HERE}/fake_torch_cuda.py {ROOT}/tests/gpu/{check} rank"
    job = passed(launch(ranks, "--no_local_rank", *script.split(), **variables))
    assert job.stdout.count("ok: ") == told
