"""How the build finds CUDA's compiler, headers and libraries, and what it says without them."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

NVCC_FOLDERS = ["/usr/local/cuda/bin", "/opt/cuda/bin"]


def run(command: list, **options: object) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def configure_without_nvcc(root: Path, folder: Path, *options: str) -> subprocess.CompletedProcess:
    """The release build's configuration where no nvcc can be found, without tests and bindings."""
    folders = [Path(path) for path in os.environ["PATH"].split(os.pathsep)] + NVCC_FOLDERS
    hidden = [str(path) for path in folders if (Path(path) / "nvcc").exists()]
    environment = {name: value for name, value in os.environ.items() if name != "CUDACXX"}
    parts = [f"-DZERORUN_{part}=OFF" for part in ("TESTS", "BENCH", "PYTHON")]
    ignored = f"-DCMAKE_IGNORE_PATH={';'.join(hidden)}"
    command = ["cmake", "-S", root, "-B", folder, ignored, *parts, *options]
    return run(command, env=environment)


def test_without_nvcc_the_build_is_for_the_cpu_and_says_so_in_one_line(
    root: Path, tmp_path: Path
) -> None:
    result = configure_without_nvcc(root, tmp_path)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if "cuda" in line.lower()]
    assert lines == ["-- CUDA: no nvcc, so this build has CPU ranks only"]
    assert "cuda" not in result.stderr.lower()


def test_a_cuda_build_that_is_asked_for_fails_without_nvcc(root: Path, tmp_path: Path) -> None:
    result = configure_without_nvcc(root, tmp_path, "-DZERORUN_CUDA=ON")
    assert result.returncode != 0
    assert "ZERORUN_CUDA is ON, but there is no nvcc" in " ".join(result.stderr.split())


@pytest.mark.parametrize("architectures", ["75", "native", "80,90", "90;75", "80;", ""])
def test_architectures_that_are_none_are_refused_by_their_name(
    root: Path, tmp_path: Path, architectures: str
) -> None:
    result = configure_without_nvcc(root, tmp_path, f"-DZERORUN_CUDA_ARCHITECTURES={architectures}")
    assert result.returncode != 0
    assert f"ZERORUN_CUDA_ARCHITECTURES is '{architectures}'" in " ".join(result.stderr.split())
    assert "from 80 on" in " ".join(result.stderr.split())


PROJECT = """cmake_minimum_required(VERSION 3.25)
project(search LANGUAGES CXX)
set(CUDAToolkit_INCLUDE_DIRS ${PROJECT_SOURCE_DIR}/toolkit/include)
set(CUDAToolkit_LIBRARY_DIR ${PROJECT_SOURCE_DIR}/toolkit/lib)
set(CMAKE_SYSTEM_PREFIX_PATH ${PROJECT_SOURCE_DIR}/system)
include(%s)
find_nvidia_library(FOUND fakeblas.h libfakeblas.so.13 cu13)
message("header ${FOUND_INCLUDE_DIR}")
message("library ${FOUND_LIBRARY}")
"""
PYPI = ".venv/lib/python3.11/site-packages/nvidia/cu13"


@pytest.fixture
def search(root: Path, tmp_path: Path) -> Callable[[], dict[str, str]]:
    """Where cmake/NvidiaLibrary.cmake finds a header and a library among tmp_path's prefixes."""
    text = PROJECT % (root / "cmake" / "NvidiaLibrary.cmake")
    (tmp_path / "CMakeLists.txt").write_text(text)
    for prefix in ("toolkit", "system", PYPI):
        for name in ("include/fakeblas.h", "lib/libfakeblas.so.13"):
            file = tmp_path / prefix / name
            file.parent.mkdir(parents=True)
            file.touch()

    def find() -> dict[str, str]:
        shutil.rmtree(tmp_path / "build", ignore_errors=True)
        result = run(["cmake", "-S", tmp_path, "-B", tmp_path / "build"])
        assert result.returncode == 0, result.stderr
        return dict(line.split(" ", 1) for line in result.stderr.splitlines())

    return find


def test_the_toolkit_comes_before_the_system_and_that_before_pypi(
    search: Callable[[], dict[str, str]], tmp_path: Path
) -> None:
    for prefix in ("toolkit", "system", PYPI):
        found = search()
        assert found["header"] == str(tmp_path / prefix / "include")
        assert found["library"] == str(tmp_path / prefix / "lib" / "libfakeblas.so.13")
        shutil.rmtree(tmp_path / prefix)
    found = search()
    assert found["header"].endswith("-NOTFOUND")
    assert found["library"].endswith("-NOTFOUND")


def test_a_library_that_only_pypi_has_is_found_beside_headers_of_the_toolkit(
    search: Callable[[], dict[str, str]], tmp_path: Path
) -> None:
    for prefix in ("toolkit", "system"):
        shutil.rmtree(tmp_path / prefix / "lib")
    found = search()
    assert found["header"] == str(tmp_path / "toolkit" / "include")
    assert found["library"] == str(tmp_path / PYPI / "lib" / "libfakeblas.so.13")


STUBS = {
    "cmake": 'echo "$@" >"$LOG"; mkdir -p build/release; touch build/release/build.ninja',
    "ninja": "exit 0",
    "dpkg-query": 'shift 3; printf "%s=installed " "$@"',
    "nvidia-smi": '[[ -n $CAPABILITIES ]] || { echo failed; exit 9; }; printf "$CAPABILITIES"',
}


@pytest.mark.parametrize(
    ("capabilities", "chosen", "architectures"),
    [
        ("9.0\\n8.0\\n9.0\\n", "", "80;90"),
        ("12.0\\n9.0\\n", "", "90;120"),
        ("7.5\\n", "", "80"),  # too old for a build of its own
        ("", "", "80"),
        ("9.0\\n", "86", "86"),
    ],
)
def test_dev_compiles_for_the_gpus_of_the_machine(
    root: Path, tmp_path: Path, capabilities: str, chosen: str, architectures: str
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in STUBS.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    shutil.copy(root / "dev", tmp_path)
    (tmp_path / ".venv").mkdir()
    for name in ("requirements-dev.txt", "requirements-cuda.txt"):  # as if they were installed
        shutil.copy(root / name, tmp_path / name)
        shutil.copy(root / name, tmp_path / ".venv" / f"installed-{name}")
    environment = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "LOG": str(tmp_path / "log"),
        "CAPABILITIES": capabilities,
        "ZERORUN_CUDA_ARCHITECTURES": chosen,
    }
    result = run([tmp_path / "dev", "build"], env=environment)
    assert result.returncode == 0, result.stderr
    arguments = (tmp_path / "log").read_text().split()
    assert f"-DZERORUN_CUDA_ARCHITECTURES={architectures}" in arguments
