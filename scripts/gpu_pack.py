"""Packs what gpu_check and gpu_first run, for machines with a GPU and without our packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ARCHIVE = "programs.tar.gz"
MOST_MIB = 64
BUILD = Path("build/release")

# As they lie in a build.
PROGRAMS = (
    *("bin/zerorun", "libexec/zerorun/train", "tests/test_gpu", "tests/test_gpu_train"),
    *("bench/gpu/bench_gpu", "bench/train/bench_train"),
    *("lib/libzerorun_cuda.so", "lib/libzerorun_train_cuda.so"),
)

# Libraries that come with the C library, with the compiler or from NVIDIA stay behind.
OF_THE_SYSTEM = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|cuda|nccl|cublas)[.-]")


class PackError(Exception):
    """Why nothing can be packed, and what to do."""


def missing_programs(folder: Path) -> list[str]:
    return [str(folder / program) for program in PROGRAMS if not (folder / program).is_file()]


def commit_here() -> str:
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    try:
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True).strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or no checkout
        return "unknown"


def working_python(name: str) -> str | None:
    """The program, or one of pyenv's: its commands for versions that are not selected fail."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = shutil.which(name)
    for program in [*([found] if found else []), *sorted(pyenv.glob(f"versions/*/bin/{name}"))]:
        job = subprocess.run([program, "-c", ""], stderr=subprocess.DEVNULL, check=False)
        if job.returncode == 0:
            return os.path.abspath(program)
    return None


def cached(name: str) -> dict[str, str]:
    """Variables of build/release whose name matches."""
    text = (BUILD / "CMakeCache.txt").read_text() if (BUILD / "CMakeCache.txt").exists() else ""
    return dict(re.findall(rf"^({name}):[A-Z]+=(.*)$", text, re.MULTILINE))


def find_module(python: str) -> Path:
    """zerorun._C for this Python, which is built if need be. It opens libzerorun_cuda.so only if
    that is of a build with the same sources and settings."""
    suffix = 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))'
    name = "_C" + subprocess.check_output([python, "-c", suffix], text=True).strip()
    folder = BUILD
    if not (folder / "python/zerorun" / name).exists():
        folder = Path("build/pack")
        settings = cached("ZERORUN_CUDA(?:_ARCHITECTURES|_DRIVERS)?")
        pybind11 = [".venv/bin/python", "-m", "pybind11", "--cmakedir"]
        settings["pybind11_DIR"] = subprocess.check_output(pybind11, text=True).strip()
        settings |= {"ZERORUN_PYTHON": "ON", "ZERORUN_TESTS": "OFF", "ZERORUN_BENCH": "OFF"}
        settings["Python_EXECUTABLE"] = python
        options = [f"-D{key}={value}" for key, value in settings.items()]
        ccache = {"CCACHE_BASEDIR": str(Path.cwd()), "CCACHE_NOHASHDIR": "1"}  # as ./dev
        for command in (
            ["cmake", "--preset", "release", "-B", folder, *options],
            ["cmake", "--build", folder, "--target", "zerorun_python"],
        ):
            subprocess.run(command, env=ccache | os.environ, stdout=sys.stderr, check=True)
    ids = [(built / "build_id.cc") for built in (BUILD, folder)]
    if not all(path.exists() for path in ids) or ids[0].read_bytes() != ids[1].read_bytes():
        raise PackError(
            f"{folder} is of other sources or settings than {BUILD}: ./dev build makes both new"
        )
    return folder / "python/zerorun" / name


def copy_libraries(folder: Path, files: Iterable[Path]) -> None:
    """The system's libraries that the files need."""
    folder.mkdir()
    listing = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    for library in sorted(set(re.findall(r"=> (/\S+)", listing))):
        if not OF_THE_SYSTEM.match(Path(library).name):
            copy = shutil.copy(library, folder)
            subprocess.run(["strip", "--strip-unneeded", copy], check=True)


def fill(folder: Path, module: Path) -> None:
    for program in PROGRAMS:
        (folder / program).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["strip", "-o", folder / program, BUILD / program], check=True)
    package = folder / "python/zerorun"
    shutil.copytree("python/zerorun", package, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["strip", "-o", package / module.name, module], check=True)
    copy_libraries(folder / "system", [*(BUILD / program for program in PROGRAMS), module])
    (folder / "commit").write_text(commit_here() + "\n")


def make_pack(target: Path, python: str, capability: str) -> str:
    """Writes the archive into the folder; what it has. Throws PackError and CalledProcessError."""
    if missing := missing_programs(BUILD):
        raise PackError(f"./dev build makes what is missing: {' '.join(missing)}")
    architecture = capability.replace(".", "")
    built = cached("ZERORUN_CUDA_ARCHITECTURES").get("ZERORUN_CUDA_ARCHITECTURES", "")
    if architecture not in built.split(";"):
        raise PackError(
            f"{BUILD} is for GPUs of {built or 'no kind'}, expected {architecture}: "
            f"ZERORUN_CUDA_ARCHITECTURES={architecture} ./dev build"
        )
    module = find_module(python)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), module)
        subprocess.run(["tar", "-czf", target / ARCHIVE, "-C", folder, "."], check=True)
        commit = Path(folder, "commit").read_text().strip()
    mib = (target / ARCHIVE).stat().st_size / (1 << 20)
    if mib > MOST_MIB:
        raise PackError(f"{target / ARCHIVE} has {mib:.0f} MiB, expected at most {MOST_MIB}")
    return f"{target / ARCHIVE}: {mib:.0f} MiB of {commit} for {built}, with {module.name}"
