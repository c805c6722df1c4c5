"""Where the tests find what ./dev has built, and how they are spread over processes."""

from prelude import *
from rank_jobs import MODULES, Forks, PythonSource

# There are more threads than cores, as in the C++ tests: one that spins takes the time of another.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
DEEPSPEED = BUILD / "python" / "zerorun" / "compat" / "site"
# What processes of which the session's programs are forks have imported, by the variable that says
# where such a process is. transformers looks for DeepSpeed at once.
MODELS = ("gpt2.modeling_gpt2", "llama.modeling_llama")
SOURCES = {
    "ZERORUN_TEST_TORCH": [*MODULES, "torch._inductor.compile_fx"],
    "ZERORUN_TEST_TRANSFORMERS": [
        *(*MODULES, "transformers.trainer", "transformers.integrations.deepspeed"),
        *(f"transformers.models.{model}" for model in MODELS),
        *("accelerate", "peft"),
    ],
}


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: Folders) -> Path:
    """Checkpoints that DeepSpeed has saved, by make_deepspeed_checkpoints.py."""
    folder = tmp_path_factory.mktemp("deepspeed")
    archive = Path(__file__).parent / "data" / "deepspeed_checkpoints.tar.xz"
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder


@pytest.fixture
def start_train(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the train program on two ranks in tmp_path; jobs end with the test."""
    write_small_job(tmp_path)
    options = ("--data", "text", "--model", "model.json", "--micro_batch", "2", "--sample=")
    jobs = []

    def start(*arguments: object, launcher: Sequence[str] = ()) -> subprocess.Popen[str]:
        words = (ZERORUN, "--accelerator", "cpu", "--num_gpus", "2", *launcher, "train")
        own = os.environ | {"OMP_NUM_THREADS": "1"}
        jobs.append(piped((*words, *options, *arguments), cwd=tmp_path, env=own))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()
        job.communicate()


@pytest.fixture
def train(start_train: Callable[..., subprocess.Popen[str]]) -> Callable[..., tuple[str, str]]:
    """Runs it to its end, with an exit code; its output and errors."""

    def run(*arguments: object, code: int = 0) -> tuple[str, str]:
        job = start_train(*arguments)
        output, errors = job.communicate(timeout=300)
        assert job.returncode == code, errors
        return output, errors

    return run


def pytest_configure(config: pytest.Config) -> None:
    """Starts the sources, unless the process that has started this one did. Each imports at the
    first question."""
    path = os.pathsep.join(map(str, (DEEPSPEED, BUILD / "python", HERE)))
    for name, modules in SOURCES.items():
        if name not in os.environ:
            source = PythonSource(modules, {"PYTHONPATH": path})
            config.add_cleanup(source.close)
            os.environ[name] = source.variables["VIRTUAL_ENV"]


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file stay in one process, which keeps what its fixtures made; parametrized files
    may say otherwise. The group that took longest in the last run begins first."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.name))
    file = os.environ.get("ZERORUN_TEST_DURATIONS", os.devnull)
    known = json.loads(Path(file).read_text() or "{}").get("python", {})
    total: dict[str, float] = {}
    for item in items:
        module = item.nodeid.partition("::")[0].removesuffix(".py").replace("/", ".")
        group = group_of(item)
        name = f"{module}::{item.name}@{group}"  # as pytest-xdist reports it
        total[group] = total.get(group, 0) + known.get(name, 0)
    items.sort(key=lambda item: -total[group_of(item)])


def group_of(item: pytest.Item) -> str:
    """What pytest-xdist gives to one process."""
    marker = item.get_closest_marker("xdist_group")
    assert marker is not None
    return str(marker.args[0] if marker.args else marker.kwargs["name"])
