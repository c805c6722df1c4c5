"""How the build finds CUDA's compiler, headers and libraries, and what it says without them."""

import select

from gpu_machine import write_program
from prelude import *

HAS_DRIVER = any(Path("/dev").glob("nvidia[0-9]*")) or bool(shutil.which("nvidia-smi"))
NVCC_FOLDERS = ["/usr/local/cuda/bin", "/opt/cuda/bin"]
WITHOUT_PARTS = [f"-DZERORUN_{part}=OFF" for part in ("TESTS", "BENCH", "PYTHON")]


def configure_without_nvcc(folder: Path, *options: str) -> subprocess.CompletedProcess:
    folders = [Path(path) for path in os.environ["PATH"].split(os.pathsep)] + NVCC_FOLDERS
    hidden = [str(path) for path in folders if (Path(path) / "nvcc").exists()]
    environment = {name: value for name, value in os.environ.items() if name != "CUDACXX"}
    ignored = f"-DCMAKE_IGNORE_PATH={';'.join(hidden)}"
    # As on a machine with a driver: without one nvcc is not even looked for.
    smi = folder / "driver" / "nvidia-smi"
    smi.parent.mkdir(parents=True)
    smi.touch(mode=0o755)
    environment["PATH"] = f"{smi.parent}:{environment['PATH']}"
    command = ["cmake", "-S", ROOT, "-B", folder, ignored, *WITHOUT_PARTS, *options]
    return ran(command, env=environment)


def test_without_nvcc_the_build_is_for_the_cpu_and_says_so_in_one_line(tmp_path: Path) -> None:
    result = passed(configure_without_nvcc(tmp_path))
    lines = [line for line in result.stdout.splitlines() if "cuda" in line.lower()]
    assert lines == ["-- CUDA: no nvcc, so this build has CPU ranks only"]
    assert "cuda" not in result.stderr.lower()


@each(
    "option message",
    ("CUDA=ON", "ZERORUN_CUDA is ON, but there is no nvcc"),
    ("CUDA_ARCHITECTURES=90;75", "ZERORUN_CUDA_ARCHITECTURES is '90;75': "),
    ("CUDA_ARCHITECTURES=native", "ZERORUN_CUDA_ARCHITECTURES is 'native': "),
    ("CUDA_ARCHITECTURES=", "ZERORUN_CUDA_ARCHITECTURES is '': "),
    ("CUDA_DRIVERS=11", "ZERORUN_CUDA_DRIVERS is '11': expected AUTO, 12 or 13"),
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, option: str, message: str) -> None:
    result = configure_without_nvcc(tmp_path, f"-DZERORUN_{option}")
    assert result.returncode != 0
    assert message in " ".join(result.stderr.split())


@pytest.mark.skipif(HAS_DRIVER, reason="this machine has a driver of NVIDIA's")
def test_without_a_driver_cuda_is_left_out_unless_it_is_asked_for(tmp_path: Path) -> None:
    result = passed(ran(["cmake", "-S", ROOT, "-B", tmp_path, *WITHOUT_PARTS]))
    [line] = [line for line in result.stdout.splitlines() if "CUDA" in line]
    assert "no NVIDIA driver, so this build has CPU ranks only; -DZERORUN_CUDA=ON" in line


PROJECT = """cmake_minimum_required(VERSION 3.25)
project(search LANGUAGES CXX)
set(CUDAToolkit_INCLUDE_DIRS ${PROJECT_SOURCE_DIR}/toolkit/include)
set(CUDAToolkit_LIBRARY_DIR ${PROJECT_SOURCE_DIR}/toolkit/lib)
set(CMAKE_SYSTEM_PREFIX_PATH ${PROJECT_SOURCE_DIR}/system)
include(%s)
find_nvidia_library(FOUND fakeblas.h libfakeblas.so.13 cu13)
message("${FOUND_INCLUDE_DIR}")
message("${FOUND_LIBRARY}")
"""
PYPI = ".venv/lib/python3.11/site-packages/nvidia/cu13"


def test_the_toolkit_comes_before_the_system_and_that_before_pypi(tmp_path: Path) -> None:
    """Where cmake/NvidiaLibrary.cmake finds a header and a library among these prefixes."""
    text = PROJECT % (ROOT / "cmake" / "NvidiaLibrary.cmake")
    (tmp_path / "CMakeLists.txt").write_text(text)
    for prefix in ("toolkit", "system", PYPI):
        for name in ("include/fakeblas.h", "lib/libfakeblas.so.13"):
            file = tmp_path / prefix / name
            file.parent.mkdir(parents=True)
            file.touch()

    def found() -> list[str]:
        shutil.rmtree(tmp_path / "build", ignore_errors=True)
        result = passed(ran(["cmake", "-S", tmp_path, "-B", tmp_path / "build"]))
        return [line.removeprefix(f"{tmp_path}/") for line in result.stderr.splitlines()]

    assert found() == ["toolkit/include", "toolkit/lib/libfakeblas.so.13"]
    shutil.rmtree(tmp_path / "toolkit/lib")  # each is looked for on its own
    assert found() == ["toolkit/include", "system/lib/libfakeblas.so.13"]
    shutil.rmtree(tmp_path / "system/lib")
    assert found() == ["toolkit/include", f"{PYPI}/lib/libfakeblas.so.13"]
    shutil.rmtree(tmp_path / "toolkit")
    assert found()[0] == "system/include"
    shutil.rmtree(tmp_path / "system")
    assert found()[0] == f"{PYPI}/include"
    shutil.rmtree(tmp_path / PYPI)
    assert found() == ["FOUND_INCLUDE_DIR-NOTFOUND", "FOUND_LIBRARY-NOTFOUND"]


STUBS = {
    "cmake": 'echo "$@" >>"$LOG"; mkdir -p build/{release,lint}; touch build/release/build.ninja',
    "ninja": 'echo "ninja $*" >>"$LOG"',
    "dpkg-query": 'shift 3; printf "%s=installed " "$@"',
    "nvcc": "exit 0",
}
ZERORUN = (
    '[[ $1 != env ]] || set -- "GPUs       1 on this machine, ${VISIBLE:-0} visible"; echo "$*"'
)
NVIDIA_SMI = '[[ -n $CAPABILITIES ]] || { echo failed; exit 9; }; printf "$CAPABILITIES"'


class Clone:
    """A folder with ./dev, whose tools only note how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        for name, text in STUBS.items():
            self.tool(name, text)
        shutil.copy(ROOT / "dev", folder)
        (folder / ".venv").mkdir()
        for name in ("requirements-dev.txt", "requirements-cuda.txt"):  # as if they were installed
            shutil.copy(ROOT / name, folder / name)
            shutil.copy(ROOT / name, folder / ".venv" / f"installed-{name}")
        write_program(folder / "build/release/bin/zerorun", f"#!/bin/bash\n{ZERORUN}\n")

    def tool(self, name: str, text: str) -> None:
        write_program(self.folder / "tools" / name, f"#!/bin/bash\n{text}\n")

    def environment(self, **variables: str) -> dict[str, str]:
        path = f"{self.folder}/tools:{os.environ['PATH']}"
        return os.environ | {"PATH": path, "LOG": str(self.log)} | variables

    def dev(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        self.log.write_text("")
        return ran([self.folder / "dev", *arguments], env=self.environment(**variables))


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


@each(
    "command capabilities chosen architectures",
    ("build", "12.0\\n9.0\\n12.0\\n", "", "90;120"),
    ("build", "7.5\\n", "", "80"),  # too old for a build of its own
    ("build", "", "", "80"),
    ("build", "9.0\\n", "86", "86"),
    ("train", "9.0\\n", "", "90"),
)
def test_dev_compiles_for_the_gpus_of_the_machine(
    clone: Clone, command: str, capabilities: str, chosen: str, architectures: str
) -> None:
    clone.tool("nvidia-smi", NVIDIA_SMI)
    passed(clone.dev(command, CAPABILITIES=capabilities, ZERORUN_CUDA_ARCHITECTURES=chosen))
    arguments = clone.log.read_text()
    assert f"-DZERORUN_CUDA_ARCHITECTURES={architectures}" in arguments.split()
    assert "-DZERORUN_CUDA=ON" in arguments
    assert "=OFF" not in arguments


@pytest.mark.skipif(HAS_DRIVER, reason="this machine has a driver of NVIDIA's")
def test_dev_train_compiles_the_programs_alone_and_no_cuda_where_no_driver_is(clone: Clone) -> None:
    result = passed(clone.dev("train"))
    log = clone.log.read_text()
    for part in ("PYTHON", "TESTS", "BENCH", "CUDA", "GLOO"):
        # CMake takes the last of two.
        assert log.rindex(f"-DZERORUN_{part}=OFF") > log.rfind(f"-DZERORUN_{part}=ON"), part
    assert log.splitlines()[-1] == "ninja -C build/release zerorun_command train"
    assert "compiling for CPU ranks of this host; ./dev build" in result.stderr
    assert clone.dev("build").returncode == 0
    assert "-DZERORUN_CUDA=ON" in clone.log.read_text()
    assert "=OFF" not in clone.log.read_text()
    result = clone.dev("train")  # what was configured for everything stays so
    assert clone.log.read_text() == "ninja -C build/release zerorun_command train\n"
    assert "for CPU ranks" not in result.stderr


@each("visible ranks", (0, 2), (1, 1), (11, 2))
def test_dev_train_starts_one_rank_on_the_only_gpu(clone: Clone, visible: int, ranks: int) -> None:
    result = clone.dev("train", "--steps", "3", VISIBLE=str(visible))
    assert result.stdout == f"--num_gpus {ranks} train --steps 3\n"


def test_dev_says_what_it_expects(clone: Clone) -> None:
    result = clone.dev("test", "-R", "Partition|Matrix")
    assert result.returncode == 2
    assert "-R 'Partition|Matrix': expected a name or a part of one" in result.stderr
    assert clone.log.read_text() == ""
    result = clone.dev("tset")
    assert result.returncode == 2
    assert "unknown command 'tset': expected one of build train test" in result.stderr
    text = clone.dev("help").stdout
    for word in result.stderr.split("one of ")[1].split(";")[0].split():
        assert f"\n  {word} " in text


def test_a_signal_to_dev_test_ends_what_it_runs(clone: Clone) -> None:
    fifo = clone.folder / "fifo"
    os.mkfifo(fifo)
    clone.tool("ninja", f"echo $$ >{fifo}; exec sleep 1000")
    for name in ("requirements-dev.txt", "requirements-test.txt"):
        shutil.copy(ROOT / name, clone.folder / name)
        shutil.copy(ROOT / name, clone.folder / ".venv" / f"installed-{name}")
    options = {"env": clone.environment(), "stdin": subprocess.DEVNULL, "stderr": None}
    with piped([clone.folder / "dev", "test"], **options | {"stdout": None}) as job:
        compiler = os.pidfd_open(int(fifo.read_text()))
        job.terminate()
        assert job.wait() == 128 + signal.SIGTERM
    ended = select.select([compiler], [], [], 20)[0]
    if not ended:
        signal.pidfd_send_signal(compiler, signal.SIGKILL)
    os.close(compiler)
    assert ended


@each(
    "failing last",
    ("none", "9 passed, 0 failed, 1"),
    ("daily", "2 passed, 1 failed, 0"),
    ("rest", "7 passed, 1 failed, 1"),
)
def test_ci_runs_everything_though_a_part_fails(tmp_path: Path, failing: str, last: str) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    write_program(
        tmp_path / "dev",
        f"""#!/bin/bash
part=daily; [[ $* == test ]] || part=rest
[[ $part != {failing} ]] || exit 1  # before its last line
case $part in
  daily) echo "7 passed, 0 failed, 1 skipped in 3 s" ;;
  rest) echo "2 passed, 0 failed, 0 skipped in 4 s" ;;
esac
""",
    )
    result = ran([tmp_path / ".ci/run"])
    assert result.stdout.splitlines()[-1].startswith(f"{last} skipped in ")
    assert (result.returncode == 0) == (failing == "none")
