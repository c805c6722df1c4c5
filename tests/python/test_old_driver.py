"""The real backend, with the real CUDA runtime in it, on drivers that it cannot use."""

from prelude import *
from zerorun import _C

HANGS = {"FAKE_DRIVER_HANGS": "1", "ZERORUN_DRIVER_TIMEOUT": "2"}
NO_GPU, MISMATCH = 100, 803  # CUDA_ERROR_NO_DEVICE and CUDA_ERROR_SYSTEM_DRIVER_MISMATCH

HAS_NONE = "no CUDA backend" in _C.why_no_cuda()
pytestmark = pytest.mark.skipif(HAS_NONE, reason="this build has no CUDA backend")
TINY = ["--steps", "1", "--save", "", "--sample_tokens", "1", "--data", __file__]
TRAIN = [BUILD / "libexec" / "zerorun" / "train", *TINY]  # the program itself, of one rank


def run(version: int, init: int, *command: str | Path, **variables: str) -> Ended:
    own = {"LD_LIBRARY_PATH": str(BUILD / "fake_cuda" / "old_driver")}
    own |= {"FAKE_DRIVER_VERSION": str(version), "FAKE_DRIVER_INIT": str(init)}
    return ran(command, env=os.environ | own | variables, timeout=100)


@each(
    "version init problem",
    (11080, 0, "cudaErrorInsufficientDriver"),
    (12020, NO_GPU, "cudaErrorNoDevice"),  # the driver itself is new enough
    (12020, MISMATCH, "cudaErrorSystemDriverMismatch"),
    (13000, MISMATCH, "cudaErrorSystemDriverMismatch"),
)
def test_env_says_what_is_wrong_with_a_driver(version: int, init: int, problem: str) -> None:
    result = passed(run(version, init, ZERORUN, "env"))
    lines = [line for line in result.stdout.splitlines() if line.startswith("CUDA ")]
    assert any(f"for CUDA {version // 1000}.{version % 1000 // 10}, " in line for line in lines)
    assert any("none is visible" in line and problem in line for line in lines), lines
    assert any(" cuBLAS" in line for line in lines), lines


@each("version init", (11080, 0), (12020, MISMATCH))
def test_train_does_not_compute_on_the_cpu_because_a_driver_fails(version: int, init: int) -> None:
    for accelerator in ("auto", "cuda"):
        result = run(version, init, *TRAIN, "--accelerator", accelerator)
        assert result.returncode != 0
        assert f"for CUDA {version // 1000}.{version % 1000 // 10}" in result.stderr
    for none in ("", "-1", "none"):
        hidden = passed(run(version, init, *TRAIN, CUDA_VISIBLE_DEVICES=none))
        assert "on cpu" in hidden.stdout + hidden.stderr


def test_without_a_gpu_a_driver_of_cuda_12_is_no_reason_not_to_train() -> None:
    passed(run(12020, NO_GPU, *TRAIN))


# Runs a command on a host with two GPUs, as far as /dev shows: in a mount namespace of its own,
# whose /dev is the folder $1 with what programs need of the real one.
WITH_TWO_GPUS = """
set -e
mount -t tmpfs dev "$1"
for file in null zero full random urandom; do
  touch "$1/$file"
  mount --bind /dev/$file "$1/$file"
done
mkdir "$1/shm"
mount --bind /dev/shm "$1/shm"
ln -s /proc/self/fd "$1/fd"
touch "$1/nvidia0" "$1/nvidia1"
mount --rbind "$1" /dev
shift
exec "$@"
"""


def with_two_gpus(folder: Path, *command: str | Path) -> list[str | Path]:
    folder.mkdir()
    return ["unshare", "-m", "sh", "-c", WITH_TWO_GPUS, "sh", folder, *command]


@pytest.fixture
def gpus_of_dev(tmp_path: Path) -> Path:
    """A folder for with_two_gpus."""
    probe = with_two_gpus(tmp_path / "probe", "true")
    if (
        os.geteuid() != 0
        or shutil.which("unshare") is None
        or subprocess.run(probe, capture_output=True, check=False).returncode != 0
    ):
        pytest.skip("a /dev of the test's own needs root and mount namespaces")
    return tmp_path / "dev"


@each("version init", (11080, 0), (12020, MISMATCH))
def test_other_programs_get_the_gpus(gpus_of_dev: Path, version: int, init: int) -> None:
    told = ["sh", "-c", 'echo "rank $RANK of $WORLD_SIZE sees $CUDA_VISIBLE_DEVICES"']
    command = with_two_gpus(gpus_of_dev, ZERORUN, "--no_python", *told)
    output = passed(run(version, init, *command)).stdout
    assert sorted(output.splitlines()) == [f"rank {rank} of 2 sees 0,1" for rank in range(2)]


def test_other_programs_may_find_gpus_that_dev_does_not_show() -> None:
    told = ["--no_python", "sh", "-c", 'echo "[${CUDA_VISIBLE_DEVICES-not set}]"']
    environment = {key: v for key, v in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    for given, options, seen in (
        ({}, [], "not set"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, [], "0"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ["--accelerator", "cpu"], ""),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ["--num_gpus", "cpu"], ""),
    ):
        result = passed(ran([ZERORUN, *options, *told], env=environment | given))
        assert set(result.stdout.split("\n")) == {f"[{seen}]", ""}


WRONG = ["for CUDA 12.2", "cudaErrorSystemDriverMismatch"]
SILENT = ["NVIDIA's driver has not said within 2 s whether a GPU can be used"]


@each(
    "options", "", "--accelerator cuda", "--num_gpus gpu", "--num_gpus 1", "--include localhost:1"
)
@each("hangs", False, True)
def test_ranks_compute_on_the_cpu_only_where_no_gpu_was_asked_for(
    gpus_of_dev: Path, options: str, hangs: bool
) -> None:
    command = with_two_gpus(gpus_of_dev, ZERORUN, *options.split(), "train", *TINY)
    init, variables = (0, HANGS) if hangs else (MISMATCH, {})
    result = run(12020, init, *command, **variables)
    assert (result.returncode == 0) == (not options), result.stderr
    told = [*(SILENT if hangs else WRONG), "GPUs are asked for, but " if options else "1 CPU rank"]
    assert all(text in result.stderr for text in told), result.stderr


def test_a_driver_that_hangs_does_not_hang_env() -> None:
    result = passed(run(12020, 0, ZERORUN, "env", **HANGS))
    assert "NVIDIA's driver has not said within 2 s what it is" in result.stdout
    assert "environment variables that zerorun reads" in result.stdout


def test_a_number_that_no_gpu_has_is_named(gpus_of_dev: Path) -> None:
    command = with_two_gpus(gpus_of_dev, ZERORUN, "--no_python", "true")
    result = passed(ran(command, env=os.environ | {"CUDA_VISIBLE_DEVICES": "2"}))
    assert "CUDA_VISIBLE_DEVICES=2 shows none of this host's 2 GPUs: 1 CPU rank" in result.stderr
