"""What an installation contains, and that programs build and run against it."""

import os
import re
import sys
from pathlib import Path

import pytest
import zerorun as package
from ranks import output_of, ran


def cached(build: Path, name: str) -> str:
    cache = (build / "CMakeCache.txt").read_text()
    return re.search(rf"^{name}:\w+=(.+)$", cache, re.M)[1]


@pytest.fixture(scope="module")
def prefix(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("prefix")
    for component in ("runtime", "development"):
        output_of("cmake", "--install", build, "--prefix", prefix, "--component", component)
    return prefix


@pytest.fixture(scope="module")
def mlp(root: Path, prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/mlp, built away from this repository against the installation."""
    build = tmp_path_factory.mktemp("mlp")
    source = root / "examples" / "mlp"
    output_of("cmake", "-G", "Ninja", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
    output_of("cmake", "--build", build)
    return build / "mlp"


def test_the_cmake_package_asks_for_no_other_package(prefix: Path) -> None:
    files = list(prefix.rglob("zerorunConfig*.cmake"))
    assert len(files) >= 2
    for file in files:
        assert not re.search(
            r"find_dependency|fmt::|hwy::|nlohmann|xxhash|OpenMP", file.read_text()
        )


def test_an_installed_library_trains_on_two_ranks(mlp: Path, prefix: Path) -> None:
    launcher = prefix / "bin" / "zerorun"
    assert "--micro_batch" in output_of(launcher, "train", "--help", cwd=prefix)
    output = output_of(launcher, "--num_gpus", "2", "--accelerator", "cpu", mlp)
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", output)]
    assert len(losses) == 6
    assert losses[-1] < losses[0] / 20


def test_the_example_reads_a_config(mlp: Path, tmp_path: Path) -> None:
    config = tmp_path / "ds_config.json"
    config.write_text('{"train_batch_size": 8, "zero_optimization": {"stag": 1}}')
    result = ran([mlp, config])
    assert result.returncode == 2
    assert "/zero_optimization/stag" in result.stderr


def test_pip_install_brings_command_program_and_package(
    root: Path, build: Path, tmp_path: Path
) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    # A build folder that stays, so that a second run compiles nothing.
    settings = [f"--config-settings=build-dir={root / 'build' / 'wheel'}"]
    # The compiler as the release build calls it: its results are in the compiler cache.
    settings.append("--config-settings=cmake.define.ZERORUN_PORTABLE=OFF")
    for name in ("ZERORUN_CUDA_ARCHITECTURES", "CMAKE_COMPILE_WARNING_AS_ERROR"):
        settings.append(f"--config-settings=cmake.define.{name}={cached(build, name)}")
    environment = os.environ | {
        "CXX": cached(build, "CMAKE_CXX_COMPILER"),
        "CCACHE_BASEDIR": str(root),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_SLOPPINESS": "pch_defines,time_macros",
    }
    output_of(*pip, *settings, "--target", tmp_path, root, env=environment)
    installed = os.environ | {"PYTHONPATH": str(tmp_path)}
    command, package_folder = tmp_path / "bin" / "zerorun", tmp_path / "zerorun"
    assert package.__version__ in output_of(command, "--version", env=installed)
    assert "--micro_batch" in output_of(command, "train", "--help", env=installed)
    script = "import zerorun; print(zerorun.__file__, zerorun.config.parse({}).config.zero.stage)"
    output = output_of(sys.executable, "-c", script, env=installed)
    assert output.split() == [str(package_folder / "__init__.py"), "0"]
    (tmp_path / "ask.py").write_text(
        "import importlib.metadata, deepspeed\n"
        "print(deepspeed.__version__, importlib.metadata.version('deepspeed'))\n"
    )
    compat = [sys.executable, "-m", "zerorun.compat", tmp_path / "ask.py"]
    assert output_of(*compat, env=installed).split() == ["0.19.8+zerorun"] * 2
    for program in ("libexec/zerorun/train", "compat/bin/deepspeed"):
        assert os.access(package_folder / program, os.X_OK)
    assert (package_folder / "py.typed").exists()
    assert (tmp_path / "zerorun_compat.pth").exists()
