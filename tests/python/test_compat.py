"""cases/compat.py under zerorun's stand-in for DeepSpeed, and the ways to get it."""

import json
import os
import sys
from pathlib import Path

import pytest
from ranks import environment, launch, ran

ASK = """
import importlib.metadata, sys
try:
    import deepspeed
except ModuleNotFoundError:
    print("none")
else:
    print(importlib.metadata.version("deepspeed"), "torch" in sys.modules, *sys.argv[1:])
"""
OURS = "0.19.8+zerorun"


@pytest.fixture
def ask(tmp_path: Path) -> Path:
    (tmp_path / "ask.py").write_text(ASK)
    return tmp_path / "ask.py"


def python(build: Path, *arguments: str | Path, **variables: str) -> str:
    result = ran([sys.executable, *map(str, arguments)], env=environment(build, **variables))
    return result.stdout.strip() or result.stderr.strip()


def test_the_launcher_gives_it_where_there_is_no_deepspeed_or_it_is_asked_to(
    build: Path, ask: Path, tmp_path: Path
) -> None:
    # Another DeepSpeed, installed as far as anybody looks.
    (tmp_path / "real" / "deepspeed").mkdir(parents=True)
    (tmp_path / "real" / "deepspeed" / "__init__.py").write_text("__version__ = '9.9'\n")
    info = tmp_path / "real" / "deepspeed-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 9.9\n")
    real = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "real"), str(build / "python")])}
    for variables, options, told in (
        ({}, [], f"{OURS} False"),
        ({"ZERORUN_COMPAT": "0"}, [], "none"),
        (real, [], "9.9 False"),
        (real, ["--deepspeed_compat"], f"{OURS} False"),
    ):
        job = launch(build, 1, *options, "--no_local_rank", ask, **variables)
        assert job.stdout.strip() == told


def test_python_m_reaches_child_processes(build: Path, ask: Path, tmp_path: Path) -> None:
    assert python(build, "-m", "zerorun.compat", ask, "x") == f"{OURS} False x"
    parent = tmp_path / "parent.py"
    parent.write_text(f"import subprocess, sys; subprocess.run([sys.executable, {str(ask)!r}])")
    assert python(build, "-m", "zerorun.compat", parent) == f"{OURS} False"
    assert python(build, "-m", "zerorun.compat", parent, ZERORUN_COMPAT="0") == "none"


def test_the_environment_variable_works_in_isolated_mode(
    build: Path, root: Path, ask: Path
) -> None:
    """Through the .pth file of the wheel, which `python -I` reads too."""
    folder = ask.parent / "site"
    folder.mkdir()
    (folder / "a.pth").write_text(f"{build / 'python'}\n")
    (folder / "b.pth").write_text((root / "python" / "zerorun_compat.pth").read_text())
    code = f"import site; site.addsitedir({str(folder)!r}); exec(open({str(ask)!r}).read())"
    assert python(build, "-I", "-c", code, ZERORUN_COMPAT="deepspeed") == f"{OURS} False"
    assert python(build, "-I", "-c", code) == "none"
    loaded = f"import site, sys; site.addsitedir({str(folder)!r}); print('zerorun' in sys.modules)"
    assert python(build, "-I", "-c", loaded) == "False"  # it costs programs of others nothing


def test_too_late_is_an_error(build: Path, tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(
        "import transformers.integrations.deepspeed\n"
        "import zerorun.compat\n"
        "try: zerorun.compat.install()\n"
        "except RuntimeError as error: print(error)\n"
    )
    assert "comes after the import of transformers" in python(build, script)


def test_the_command_deepspeed(build: Path, ask: Path) -> None:
    starter = ask.with_name("starter.py")
    command = ["deepspeed", "--accelerator", "cpu", "--num_gpus", "2", "--no_local_rank", str(ask)]
    starter.write_text(f"import subprocess; subprocess.run({command!r})")
    path = os.pathsep.join([str(build / "bin"), os.environ["PATH"]])
    lines = python(build, "-m", "zerorun.compat", starter, PATH=path).splitlines()
    assert sorted(lines) == [f"{OURS} False", f"[rank 1] {OURS} False"] or len(lines) == 2


def test_the_other_commands(build: Path, tmp_path: Path) -> None:
    """Reports are zerorun's; the rest says what to use, and fails."""
    section = {"enabled": True, "max_train_batch_size": 12, "micro_batch_sizes": [3]}
    (tmp_path / "elastic.json").write_text(json.dumps({"elasticity": section}))
    starter = tmp_path / "starter.py"
    starter.write_text(
        "import subprocess, sys\n"
        "for command in sys.argv[1:]:\n"
        "    found = subprocess.run(command, capture_output=True, text=True, shell=True)\n"
        "    print(found.returncode, 'zerorun' in found.stdout + found.stderr)\n"
    )
    module = f"{sys.executable} -m deepspeed."
    folders = f"--input_folder {tmp_path} --output_folder {tmp_path}/out"
    commands = {
        "dsr": "0 True",
        "ds_ssh": "1 True",
        f"{module}env_report": "0 True",
        f"{module}checkpoint.ds_to_universal {folders}": "1 True",
        f"ds_elastic -c {tmp_path}/elastic.json --world-size 4": "0 False",
    }
    path = os.pathsep.join([str(build / "bin"), os.environ["PATH"]])
    told = python(build, "-m", "zerorun.compat", starter, *commands, PATH=path)
    assert told.splitlines() == [*commands.values()]


def test_one_rank_without_a_launcher(build: Path, tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text(
        "import deepspeed, torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "engine, *_ = deepspeed.initialize(model=model, config={'train_batch_size': 1})\n"
        "print(torch.distributed.get_world_size(), engine.world_size)\n"
        "engine.destroy()\n"
    )
    assert python(build, "-m", "zerorun.compat", script).splitlines()[-1] == "1 1"


def test_a_group_of_one_rank_in_a_job_of_several_is_refused(build: Path, tmp_path: Path) -> None:
    """Each rank would train a whole model of its own. A group that is given is meant."""
    program = tmp_path / "alone.py"
    program.write_text(f"""
import os
import deepspeed, torch, zerorun
import torch.distributed as dist
own = "file://{tmp_path}/" + os.environ["RANK"]
dist.init_process_group("gloo", init_method=own, rank=0, world_size=1)
with deepspeed.zero.Init(data_parallel_group=dist.group.WORLD):
    assert torch.nn.Linear(2, 2).weight.shape == (0,)
model = torch.nn.Linear(2, 2)
config = {{"train_batch_size": 1, "optimizer": {{"type": "AdamW", "params": {{}}}}}}
for start in (deepspeed.zero.Init, lambda: deepspeed.initialize(model=model, config=config)):
    try:
        start()
    except zerorun.ConfigError as error:
        print(str(error).split(",")[0])
""")
    printed = launch(build, 2, "--deepspeed_compat", "--no_local_rank", program).stdout
    refusal = ": the launcher started 2 ranks (WORLD_SIZE=2)"
    expected = [f"{where}{refusal}" for where in ("initialize", "zero.Init") for _ in range(2)]
    assert sorted(printed.splitlines()) == expected
