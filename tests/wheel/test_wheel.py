"""What the wheel contains, and that it trains where nothing else of this repository is."""

from prelude import *

from .conftest import DEADLINE, Environment

# What every Linux has that the wheel's tag names.
OF_THE_SYSTEM = re.compile(
    r"(linux-vdso|ld-linux-\S+|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so(\.\d+)*"
)
MAX_OWN_BYTES = 6_000_000
MAX_TOTAL_S, MAX_OWN_S = 60, 5  # of which zerorun's own: what follows the installation

WHO = "import deepspeed as d, sys, zerorun as z; print(sys.executable, z.__file__, d.__version__)"
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


def test_it_has_a_licence_and_a_component_of_all_that_it_contains(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (name,) = [name for name in names if name.endswith("/sboms/zerorun.cdx.json")]
        sbom = json.loads(archive.read(name))
    assert (sbom["bomFormat"], sbom["metadata"]["component"]["name"]) == ("CycloneDX", "zerorun")
    assert any(name.endswith("/licenses/THIRD_PARTY.md") for name in names)
    grafted = [name for name in names if name.startswith("zerorun.libs/")]
    known = {"libgomp1", "pybind11"}
    for library in ("fmt", "hwy", "dnnl", "gloo", "uring", "xxhash"):
        if any(f"lib{library}-" in name for name in grafted):
            known.add(f"lib{library}-dev")
    assert known <= {Path(name).stem for name in names if "/licenses/third_party/" in name}
    assert known | {"nlohmann-json3-dev"} <= {part["name"] for part in sbom["components"]}


def test_every_library_comes_from_the_wheel_or_the_c_library(plain: Environment) -> None:
    files = [path for path in plain.site.glob("zerorun/**/*") if path.is_file()]
    files = [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]
    assert len(files) >= 4  # programs, the module and the plugins
    for file in files:
        for line in output_of("ldd", file).splitlines():
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
    assert said.startswith(f"zerorun {version} (commit ")


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


def test_ranks_run_the_python_that_zerorun_lies_beside(plain: Environment, tmp_path: Path) -> None:
    python = str(plain.folder / "bin" / "python")
    other = tmp_path / "bin" / "python"  # of an environment that is active
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 9\n")
    other.chmod(0o755)
    (plain.work / "who.py").write_text(WHO)
    output = plain.run("zerorun", "--num_gpus", "2", "who.py", VIRTUAL_ENV=str(tmp_path))
    for line in output.splitlines():
        found, package, version = line.split()
        assert (found, package) == (python, str(plain.site / "zerorun" / "__init__.py"))
        assert version.endswith("+zerorun")
    assert len(output.splitlines()) == 2


@each("imports", "import torch", "import zerorun, torch")
def test_a_pytorch_process_has_one_openmp_runtime(with_torch: Environment, imports: str) -> None:
    (with_torch.work / "loop.py").write_text(TORCH.format(imports=imports))
    output = with_torch.run("zerorun", "--num_gpus", "2", "loop.py", hidden=False)
    for line in output.splitlines():
        fell, *runtimes = line.split()
        assert fell == "True"
        assert len(runtimes) == 1
        assert "/torch/lib/libgomp" in runtimes[0]
