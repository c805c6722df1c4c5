"""What importing the package does, and that its type stubs tell the truth."""

import copy
import inspect
import re
import sys
import types
from pathlib import Path

import pytest
import torch
import zerorun
from ranks import environment, passed, ran

# Every error, and what Python's own programs know it as.
ERRORS = {
    "ConfigError": ValueError,
    "CommError": None,
    "DeviceError": None,
    "IoError": OSError,
    "CheckpointError": ValueError,
    "NumericError": ArithmeticError,
    "InternalError": AssertionError,
}


def test_version_is_the_build_systems(root: Path) -> None:
    assert (
        f"project(zerorun VERSION {zerorun.__version__} " in (root / "CMakeLists.txt").read_text()
    )


def test_errors_form_the_same_tree_as_in_cpp_and_are_pythons_too() -> None:
    assert zerorun.Error.__bases__ == (RuntimeError,)
    for name, builtin in ERRORS.items():
        error = getattr(zerorun, name)
        assert error.__bases__ == (zerorun.Error, *([builtin] if builtin else []))
        assert str(copy.deepcopy(error("why"))) == "why"
        assert (error.__module__, error.__name__) == ("zerorun", name)
        assert error.__doc__


def test_import_loads_no_framework_and_touches_no_accelerator(build: Path) -> None:
    code = """if True:
        import sys
        before = set(sys.modules)
        import zerorun
        loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(*(loaded - sys.stdlib_module_names))
        print({line.split("/")[-1].strip() for line in open("/proc/self/maps") if "/" in line})
        print(*__import__("os").listdir("/proc/self/task"))
    """
    command = [sys.executable, "-c", code]
    env = {"PYTHONPATH": str(build / "python")}
    output = passed(ran(command, env=env)).stdout
    modules, libraries, threads = output.splitlines()
    assert modules == "zerorun"
    assert not any(word in libraries for word in ("cuda", "nvidia", "torch"))
    assert len(threads.split()) == 1


def test_an_engine_needs_few_modules(build: Path) -> None:
    """Checkpoints, converters, monitors and profilers are imported when they are used."""
    code = """if True:
        import sys, zerorun.initialization
        print(*(name for name in sys.modules if name.split(".")[0] == "zerorun"))
    """
    env = {"PYTHONPATH": str(build / "python")}
    command = [sys.executable, "-c", code]
    job = passed(ran(command, env=env))
    modules = job.stdout.split()
    assert len(modules) <= 80, modules
    for package in ("interchange", "profiling"):
        assert f"zerorun.{package}" not in modules


def test_units_are_made_while_python_collects(build: Path, tmp_path: Path) -> None:
    """The first object of a class has no layout yet while pybind11 makes others for it."""
    code = """if True:
        import gc, torch, zerorun
        model = torch.nn.Linear(4, 4)
        gc.set_threshold(1)
        zerorun.shard(model, stage=3)
    """
    command = [sys.executable, "-c", code]
    passed(ran(command, cwd=tmp_path, env=environment(build, CUDA_VISIBLE_DEVICES="")))


def test_pytorch_without_numpy_trains_saves_and_loads(build: Path, tmp_path: Path) -> None:
    """PyTorch's packages do not ask for NumPy."""
    code = """if True:
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
        torch.ones(1).numpy()
    """
    command = [sys.executable, "-c", code]
    job = ran(command, cwd=tmp_path, env=environment(build, CUDA_VISIBLE_DEVICES=""))
    assert job.stdout == f"{{'generator': tensor([1., 1., 1.]), 'drawn': {2**70}}}\n", job.stderr
    assert "Numpy is not available" in job.stderr  # the program could not use it


def test_type_stubs_are_those_of_the_bindings(root: Path, build: Path) -> None:
    pytest.importorskip("pybind11_stubgen")
    script = [sys.executable, root / "scripts" / "core_stubs.py"]
    told = passed(ran(script, env=environment(build)))
    assert (root / "python" / "zerorun" / "_C.pyi").read_text() == told.stdout, (
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


def test_an_error_of_the_core_is_one_of_pythons() -> None:
    with pytest.raises(ValueError, match=r"my\.json(?s:.)*zero_optimization/stage") as caught:
        zerorun.config.parse({"zero_optimization": {"stage": 7}}, source="my.json")
    assert type(caught.value) is zerorun.ConfigError


def test_python_m_zerorun_is_the_command(root: Path, build: Path) -> None:
    command = [sys.executable, "-m", "zerorun", "--version"]
    env = {"PYTHONPATH": str(build / "python")}
    job = passed(ran(command, env=env))
    told = re.fullmatch(r"zerorun (\S+) \(commit ([0-9a-f]{12})\)\n", job.stdout)
    assert told is not None, job.stdout
    assert told[1] == zerorun.__version__
    git = ["git", "-C", root, "cat-file", "-t", told[2]]
    assert passed(ran(git)).stdout == "commit\n"


def test_an_engine_has_pytorchs_words() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    units: zerorun.UnitPolicy = torch.nn.Linear
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = zerorun.shard(model, stage=3, optimizer=sgd, units=units)
    assert (engine.stage, engine.grad_norm) == (3, None)
    engine.backward(engine(torch.ones(1, 2)).sum())
    engine.step()
    assert engine.grad_norm == engine.get_global_grad_norm() > 0
    engine.destroy()
    assert zerorun.Initializer
