"""What importing the package does, that its type stubs tell the truth, and what an installation
contains: programs build and run against it."""

import copy
import inspect
import types

import torch
import zerorun
from prelude import *
from zerorun import communicator, experts, process_state
from zerorun.model.engine_ranks import data_communicator
from zerorun.process_state import STATE, ProcessState
from zerorun.zero import Init

# Every error, and what Python's own programs know it as.
ERRORS = {"ConfigError": ValueError, "CommError": None, "DeviceError": None, "IoError": OSError}
ERRORS |= {"CheckpointError": ValueError, "NumericError": ArithmeticError}
ERRORS["InternalError"] = AssertionError


def test_errors_form_the_same_tree_as_in_cpp_and_are_pythons_too() -> None:
    assert zerorun.Error.__bases__ == (RuntimeError,)
    for name, builtin in ERRORS.items():
        error = getattr(zerorun, name)
        assert error.__bases__ == (zerorun.Error, *([builtin] if builtin else []))
        assert str(copy.deepcopy(error("why"))) == "why"
        assert (error.__module__, error.__name__) == ("zerorun", name)
        assert error.__doc__


def run(code: str, folder: Path | None = None) -> Ended:
    variables = environment(CUDA_VISIBLE_DEVICES="")
    return passed(ran([sys.executable, "-c", code], cwd=folder, env=variables))


IMPORTED = """
import os, sys
before = set(sys.modules)
import zerorun
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*(loaded - sys.stdlib_module_names))
print({line.split("/")[-1].strip() for line in open("/proc/self/maps") if "/" in line})
print(*os.listdir("/proc/self/task"))
import zerorun.initialization
print(*(name for name in sys.modules if name.split(".")[0] == "zerorun"))
"""


def test_import_loads_no_framework_and_touches_no_accelerator() -> None:
    """And an engine needs few modules: checkpoints, converters, monitors and profilers are imported
    when they are used."""
    modules, libraries, threads, of_engine = run(IMPORTED).stdout.splitlines()
    assert modules == "zerorun"
    assert not any(word in libraries for word in ("cuda", "nvidia", "torch"))
    assert len(threads.split()) == 1
    assert len(of_engine.split()) <= 80, of_engine
    assert not {"zerorun.interchange", "zerorun.profiling"} & set(of_engine.split())


def test_units_are_made_while_python_collects() -> None:
    """The first object of a class has no layout yet while pybind11 makes others for it."""
    imports = "import gc, torch, zerorun\nmodel = torch.nn.Linear(4, 4)\n"
    run(f"{imports}gc.set_threshold(1)\nzerorun.shard(model, stage=3)")


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
import torch, zerorun
model = torch.nn.Linear(4, 4)
engine = zerorun.shard(model, stage=3, optimizer=torch.optim.AdamW(model.parameters()))
model(torch.ones(2, 4)).sum().backward()
engine.step()
state = {"generator": torch.ones(3), "drawn": 2 ** 70}
engine.save_checkpoint("saved", client_state=state)
print(engine.load_checkpoint("saved")[1])
try:
    torch.ones(1).numpy()
except RuntimeError as error:
    print(error)
"""


def test_pytorch_without_numpy_trains_saves_and_loads(tmp_path: Path) -> None:
    """PyTorch's packages do not ask for NumPy."""
    told = run(WITHOUT_NUMPY, tmp_path).stdout.splitlines()
    loaded = f"{{'generator': tensor([1., 1., 1.]), 'drawn': {2**70}}}"
    assert told == [loaded, "Numpy is not available"]  # the program could not use it


def test_type_stubs_are_those_of_the_bindings() -> None:
    pytest.importorskip("pybind11_stubgen")
    told = output_of(sys.executable, ROOT / "scripts" / "core_stubs.py", env=environment())
    assert (ROOT / "python" / "zerorun" / "_C.pyi").read_text() == told, (
        "PYTHONPATH=build/release/python python scripts/core_stubs.py --write"
    )


def test_everything_public_is_documented() -> None:
    for module in (zerorun, zerorun.config):
        assert module.__doc__
        for name in module.__all__:
            thing = getattr(module, name)
            if isinstance(thing, types.GenericAlias):  # a class to inspect, before Python 3.11
                continue
            if inspect.isclass(thing) or inspect.isfunction(thing):
                assert thing.__doc__, f"{module.__name__}.{name}"


def test_python_m_zerorun_is_the_command() -> None:
    env = {"PYTHONPATH": str(BUILD / "python")}
    said = output_of(sys.executable, "-m", "zerorun", "--version", env=env)
    told = re.fullmatch(r"zerorun (\S+) \(commit ([0-9a-f]{12})\)\n", said)
    assert told is not None, said
    assert told[1] == zerorun.__version__
    assert f"project(zerorun VERSION {told[1]} " in (ROOT / "CMakeLists.txt").read_text()
    assert output_of("git", "-C", ROOT, "cat-file", "-t", told[2]) == "commit\n"


def test_what_is_public_is_what_the_list_says() -> None:
    script = [sys.executable, ROOT / "scripts" / "public_names.py", BUILD / "bin" / "zerorun"]
    listed = json.loads((ROOT / "tests" / "public_names.json").read_text())
    found = json.loads(output_of(*script, env=environment()))
    for name, known in listed.items():
        gone, new = sorted(set(known) - set(found[name])), sorted(set(found[name]) - set(known))
        assert (gone, new) == ([], []), (
            f"{name}: see docs/compatibility.md; if this is meant, scripts/public_names.py --write"
        )
    assert found == listed
    assert "zerorun.zero.safe_get_full_grad(param)" in listed["python"]
    assert "engine.h: Engine" in listed["headers"]
    assert "/zero_optimization/offload_optimizer/device" in listed["keys"]
    assert {"train --save_every", "environment ZERORUN_JOB_SECRET"} <= set(listed["commands"])


def use_an_engine() -> None:
    settings = {"train_batch_size": 1, "comms_logger": {"enabled": True}}
    zerorun.initialize(torch.nn.Linear(2, 2), config=settings)[0].destroy()


def test_reset_forgets_what_a_process_keeps() -> None:
    before = communicator.world()
    use_an_engine()
    STATE.experts["ep_size_1"] = STATE.sequence = object()  # type: ignore[assignment]
    data = data_communicator((0,))
    asked = []
    STATE.others["a module"] = lambda: asked.append(1)
    STATE.inits.append(Init(enabled=True))
    assert communicator.world() is before
    assert data_communicator((0,)) is data
    assert "ep_size_1" in experts.known()
    process_state.reset()
    assert asked == [1]
    assert ProcessState(others=STATE.others) == STATE
    assert experts.known() == {}
    assert communicator.world() is not before
    assert data_communicator((0,)) is not data
    use_an_engine()
    del STATE.others["a module"]


def test_no_module_but_process_state_keeps_anything() -> None:
    """No other has a global statement, or a new container, which is there to be filled."""
    empty = r"^\w+(?:: .*)? = (\{\}|\[\]|set\(\)|weakref\.\S*)(?: *#.*)?$|^ *(global \w.*)$"
    kept = {}
    for path in (ROOT / "python" / "zerorun").rglob("*.py"):
        if "site" not in path.parts:  # whose names are DeepSpeed's
            found = re.findall(empty, path.read_text(), re.MULTILINE)
            kept |= {path.stem: {one or other for one, other in found}} if found else {}
    units = {"weakref.WeakKeyDictionary()"}
    assert kept == {"module_call": {"weakref.WeakSet()"}, "shared_unit": units}


# --- installations ---


def cached(name: str) -> str:
    cache = (BUILD / "CMakeCache.txt").read_text()
    return re.search(rf"^{name}:\w+=(.+)$", cache, re.M)[1]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: Folders) -> Path:
    prefix = tmp_path_factory.mktemp("prefix")
    for component in ("runtime", "development"):
        output_of("cmake", "--install", BUILD, "--prefix", prefix, "--component", component)
    return prefix


@pytest.fixture(scope="module")
def mlp(prefix: Path, tmp_path_factory: Folders) -> Path:
    """examples/mlp, built away from this repository against the installation."""
    build = tmp_path_factory.mktemp("mlp")
    source = ROOT / "examples" / "mlp"
    output_of("cmake", "-G", "Ninja", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
    output_of("cmake", "--build", build)
    return build / "mlp"


def test_the_cmake_package_asks_for_no_other_package(prefix: Path) -> None:
    files = list(prefix.rglob("zerorunConfig*.cmake"))
    assert len(files) >= 2
    for file in files:
        others = r"find_dependency|fmt::|hwy::|nlohmann|xxhash|OpenMP"
        assert not re.search(others, file.read_text())


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


def test_pip_install_brings_command_program_and_package(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    # A build folder that stays, so that a second run compiles nothing.
    settings = [f"--config-settings=build-dir={ROOT / 'build' / 'wheel'}"]
    # The compiler as the release build calls it: its results are in the compiler cache.
    settings.append("--config-settings=cmake.define.ZERORUN_PORTABLE=OFF")
    for name in ("ZERORUN_CUDA_ARCHITECTURES", "CMAKE_COMPILE_WARNING_AS_ERROR"):
        settings.append(f"--config-settings=cmake.define.{name}={cached(name)}")
    environment = os.environ | {
        "CXX": cached("CMAKE_CXX_COMPILER"),
        "CCACHE_BASEDIR": str(ROOT),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_SLOPPINESS": "pch_defines,time_macros",
    }
    output_of(*pip, *settings, "--target", tmp_path, ROOT, env=environment)
    installed = os.environ | {"PYTHONPATH": str(tmp_path)}
    command, package_folder = tmp_path / "bin" / "zerorun", tmp_path / "zerorun"
    assert zerorun.__version__ in output_of(command, "--version", env=installed)
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
