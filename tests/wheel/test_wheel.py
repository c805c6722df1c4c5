"""What the wheel contains, and that it trains where nothing else of this repository is."""

import json
import re
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

from .conftest import DEADLINE, ROOT, Environment

# What every Linux has that the wheel's tag names.
OF_THE_SYSTEM = re.compile(
    r"(linux-vdso|ld-linux-\S+|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so(\.\d+)*"
)
MAX_OWN_BYTES = 6_000_000
MAX_TOTAL_S, MAX_OWN_S = 60, 5  # of which zerorun's own: what follows the installation

WHO = "import sys, zerorun\nprint(sys.executable, zerorun.__file__)\n"
COMPAT = "import deepspeed, sys\nprint(sys.executable, deepspeed.__version__)\n"
TORCH = """
import sys
{imports}
import zerorun
model = torch.nn.Linear(8, 1)
torch.nn.init.zeros_(model.weight)
config = {{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {{"stage": 2}},
          "optimizer": {{"type": "SGD", "params": {{"lr": 0.1}}}}}}
engine, *_ = zerorun.initialize(model=model, config=config)
losses = []
for step in range(5):
    loss = (engine(torch.ones(4, 8)) - 1).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
runtimes = {{line.split()[-1] for line in open("/proc/self/maps") if "gomp" in line}}
print(losses[-1] < losses[0], *runtimes)
"""


def elf_files(environment: Environment) -> list[Path]:
    """Programs, the module and the plugins, which bring what is in zerorun.libs."""
    files = [path for path in environment.site.glob("zerorun/**/*") if path.is_file()]
    return [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]


def test_its_tag_names_a_c_library(wheel: Path) -> None:
    tag = re.search(r"-manylinux_2_(\d+)_(x86_64|aarch64)\.whl$", wheel.name)
    assert int(tag[1]) <= 34  # RHEL 9's


def test_it_has_no_path_of_the_machine_that_built_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            # The last is how ccache names sources: builds without it would differ.
            for place in (str(ROOT), "/.venv", "pip-build-env", "/root/", "../../comm/"):
                assert place.encode() not in data, f"{name} has {place}"


def test_it_has_the_licences_of_what_it_contains(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    kept = {Path(name).stem for name in names if "/licenses/third_party/" in name}
    grafted = [name for name in names if name.startswith("zerorun.libs/")]
    assert {"libgomp1", "pybind11"} <= kept
    for library in ("fmt", "hwy", "dnnl", "gloo", "uring", "xxhash"):
        if any(f"lib{library}-" in name for name in grafted):
            assert f"lib{library}-dev" in kept
    assert any(name.endswith("/licenses/THIRD_PARTY.md") for name in names)


def test_it_says_what_it_is_made_of(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/sboms/zerorun.cdx.json")]
        sbom = json.loads(archive.read(name))
        grafted = {name.split("/")[-1] for name in archive.namelist() if "zerorun.libs/" in name}
    assert (sbom["bomFormat"], sbom["metadata"]["component"]["name"]) == ("CycloneDX", "zerorun")
    packages = {component["name"] for component in sbom["components"]}
    assert {"pybind11", "nlohmann-json3-dev", "libgomp1"} <= packages
    for library in ("fmt", "hwy", "dnnl", "gloo", "uring", "xxhash"):
        if any(file.startswith(f"lib{library}-") for file in grafted):
            assert f"lib{library}-dev" in packages


def test_every_library_comes_from_the_wheel_or_the_c_library(plain: Environment) -> None:
    files = elf_files(plain)
    assert len(files) >= 4
    for file in files:
        listed = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
        for line in listed.splitlines():
            name, _, path = line.strip().partition(" => ")
            inside = path.startswith(str(plain.site))
            assert inside or OF_THE_SYSTEM.fullmatch(Path(name.split()[0]).name), f"{file}: {line}"


def test_it_is_small(wheel: Path) -> None:
    """But for oneDNN, which Debian has with all that it computes, and for CUDA."""
    with zipfile.ZipFile(wheel) as archive:
        sizes = {info.filename: info.compress_size for info in archive.infolist()}
    own = sum(size for name, size in sizes.items() if "dnnl" not in name and "cuda" not in name)
    print(f"{wheel.name}: {wheel.stat().st_size} bytes, {own} of them neither oneDNN nor CUDA")
    assert own <= MAX_OWN_BYTES


def test_the_command_and_the_module_are_one(plain: Environment) -> None:
    said = plain.run("zerorun", "--version")
    assert said == plain.run("python", "-m", "zerorun", "version")
    version = plain.run("python", "-c", "import zerorun; print(zerorun.__version__)").strip()
    commit = re.fullmatch(rf"zerorun {re.escape(version)} \(commit ([0-9a-f]{{12}})\)\n", said)
    assert commit, said
    assert "train" in plain.run("zerorun", "env")


def test_from_installing_to_the_first_loss(plain: Environment) -> None:
    (plain.work / "text.txt").write_text("to be or not to be, that is the question\n" * 2000)
    options = ["--data", "text.txt", "--model", "nano", "--steps", "3", "--save", "out"]
    arguments = ["--accelerator", "cpu", "--num_gpus", "2", "train", *options]
    begin = time.monotonic()
    with subprocess.Popen(
        plain.command("zerorun", *arguments), cwd=plain.work, stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        for line in job.stdout:
            if "loss" in line:
                break
        own_s = time.monotonic() - begin
        job.stdout.read()
        assert job.wait(DEADLINE) == 0
    print(f"pip install {plain.install_s:.1f} s, then {own_s:.1f} s to the first loss")
    assert own_s < MAX_OWN_S
    assert plain.install_s + own_s < MAX_TOTAL_S
    assert list((plain.work / "out").rglob("*.safetensors"))


def test_ranks_run_the_python_that_zerorun_is_installed_beside(
    plain: Environment, tmp_path: Path
) -> None:
    python = str(plain.folder / "bin" / "python")
    other = tmp_path / "bin" / "python"  # of an environment that is active
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 9\n")
    other.chmod(0o755)
    (plain.work / "who.py").write_text(WHO)
    output = plain.run("zerorun", "--num_gpus", "2", "who.py", VIRTUAL_ENV=str(tmp_path))
    assert output.splitlines() == [f"{python} {plain.site / 'zerorun' / '__init__.py'}"] * 2


def test_scripts_for_deepspeed_run(plain: Environment) -> None:
    (plain.work / "compat.py").write_text(COMPAT)
    output = plain.run("zerorun", "compat.py").split()
    assert output[0] == str(plain.folder / "bin" / "python")
    assert output[1].endswith("+zerorun")


@pytest.mark.parametrize("imports", ["import torch", "import zerorun, torch"])
def test_a_pytorch_process_has_one_openmp_runtime(with_torch: Environment, imports: str) -> None:
    (with_torch.work / "loop.py").write_text(TORCH.format(imports=imports))
    output = with_torch.run("zerorun", "--num_gpus", "2", "loop.py", hidden=False)
    for line in output.splitlines():
        fell, *runtimes = line.split()
        assert fell == "True"
        assert len(runtimes) == 1
        assert "/torch/lib/libgomp" in runtimes[0]
