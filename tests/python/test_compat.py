"""zerorun's stand-in for DeepSpeed: the ways to get it, and every public name."""

from prelude import *

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


def python(*arguments: object, **variables: str) -> str:
    """What Python prints, with the launcher among its commands."""
    path = os.pathsep.join([str(BUILD / "bin"), os.environ["PATH"]])
    result = ran([sys.executable, *map(str, arguments)], env=environment(PATH=path, **variables))
    return result.stdout.strip() or result.stderr.strip()


def test_the_launcher_gives_it_where_none_is_or_it_is_asked_to(ask: Path, tmp_path: Path) -> None:
    # Another DeepSpeed, installed as far as anybody looks.
    (tmp_path / "real" / "deepspeed").mkdir(parents=True)
    (tmp_path / "real" / "deepspeed" / "__init__.py").write_text("__version__ = '9.9'\n")
    info = tmp_path / "real" / "deepspeed-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 9.9\n")
    real = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "real"), str(BUILD / "python")])}
    for variables, options, told in (
        ({}, [], f"{OURS} False"),
        ({"ZERORUN_COMPAT": "0"}, [], "none"),
        (real, [], "9.9 False"),
        (real, ["--deepspeed_compat"], f"{OURS} False"),
    ):
        job = launch(1, *options, "--no_local_rank", ask, **variables)
        assert job.stdout.strip() == told


def test_python_m_reaches_child_processes(ask: Path, tmp_path: Path) -> None:
    assert python("-m", "zerorun.compat", ask, "x") == f"{OURS} False x"
    parent = tmp_path / "parent.py"
    parent.write_text(f"import subprocess, sys; subprocess.run([sys.executable, {str(ask)!r}])")
    assert python("-m", "zerorun.compat", parent) == f"{OURS} False"
    assert python("-m", "zerorun.compat", parent, ZERORUN_COMPAT="0") == "none"


def test_the_environment_variable_works_in_isolated_mode(ask: Path) -> None:
    """Through the .pth file of the wheel, which `python -I` reads too."""
    folder = ask.parent / "site"
    folder.mkdir()
    (folder / "a.pth").write_text(f"{BUILD / 'python'}\n")
    (folder / "b.pth").write_text((ROOT / "python" / "zerorun_compat.pth").read_text())
    code = f"import site; site.addsitedir({str(folder)!r}); exec(open({str(ask)!r}).read())"
    assert python("-I", "-c", code, ZERORUN_COMPAT="deepspeed") == f"{OURS} False"
    assert python("-I", "-c", code) == "none"
    loaded = f"import site, sys; site.addsitedir({str(folder)!r}); print('zerorun' in sys.modules)"
    assert python("-I", "-c", loaded) == "False"  # it costs programs of others nothing


def test_too_late_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(
        "import transformers.integrations.deepspeed\n"
        "import zerorun.compat\n"
        "try: zerorun.compat.install()\n"
        "except RuntimeError as error: print(error)\n"
    )
    assert "comes after the import of transformers" in python(script)


def test_the_command_deepspeed(ask: Path) -> None:
    starter = ask.with_name("starter.py")
    command = ["deepspeed", "--accelerator", "cpu", "--num_gpus", "2", "--no_local_rank", str(ask)]
    starter.write_text(f"import subprocess; subprocess.run({command!r})")
    assert python("-m", "zerorun.compat", starter).splitlines() == [f"{OURS} False"] * 2


STARTER = """
import subprocess, sys
for command in sys.argv[1:]:
    found = subprocess.run(command, capture_output=True, text=True, shell=True)
    print(found.returncode, "zerorun" in found.stdout + found.stderr)
"""


def test_the_other_commands(tmp_path: Path) -> None:
    """Reports are zerorun's; the rest says what to use, and fails."""
    section = {"enabled": True, "max_train_batch_size": 12, "micro_batch_sizes": [3]}
    (tmp_path / "elastic.json").write_text(json.dumps({"elasticity": section}))
    starter = tmp_path / "starter.py"
    starter.write_text(STARTER)
    module = f"{sys.executable} -m deepspeed."
    folders = f"--input_folder {tmp_path} --output_folder {tmp_path}/out"
    commands = {
        "dsr": "0 True",
        "ds_ssh": "1 True",
        f"{module}env_report": "0 True",
        f"{module}checkpoint.ds_to_universal {folders}": "1 True",
        f"ds_elastic -c {tmp_path}/elastic.json --world-size 4": "0 False",
    }
    told = python("-m", "zerorun.compat", starter, *commands)
    assert told.splitlines() == [*commands.values()]


def test_one_rank_without_a_launcher(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text(
        "import deepspeed, torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "engine, *_ = deepspeed.initialize(model=model, config={'train_batch_size': 1})\n"
        "print(torch.distributed.get_world_size(), engine.world_size)\n"
        "engine.destroy()\n"
    )
    assert python("-m", "zerorun.compat", script).splitlines()[-1] == "1 1"


def test_a_group_of_one_rank_in_a_job_of_several_is_refused(tmp_path: Path) -> None:
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
    printed = launch(2, "--deepspeed_compat", "--no_local_rank", program).stdout
    refusal = ": the launcher started 2 ranks (WORLD_SIZE=2)"
    expected = [f"{where}{refusal}" for where in ("initialize", "zero.Init") for _ in range(2)]
    assert sorted(printed.splitlines()) == expected


# Looks at every name; then asks those that it is given.
WALK = """
import importlib, json, sys, warnings
import zerorun.compat
zerorun.compat.install()
warnings.simplefilter("ignore")
import deepspeed
from deepspeed import _names
from deepspeed._finder import full
from deepspeed._placeholders import hint_of
from deepspeed._placeholders import is_placeholder

def problem_of(name, value):
    if not is_placeholder(value):
        return None
    try:
        value()
    except NotImplementedError as error:
        wanted = ("zerorun", name.rpartition(".")[2], hint_of(name))
        missing = [text for text in wanted if text not in str(error)]
        return missing and f"{name}: {missing} not in: {error}"
    return f"{name}: can be called"

walked, problems = 0, []
for module in _names.modules():
    loaded = importlib.import_module(full(module))
    names = _names.names_of(module)
    assert hasattr(loaded, "__path__") == names.is_package, module
    for name in sorted(_names.all_names(module)):
        value, walked = getattr(loaded, name), walked + 1
        place = f"{full(module)}.{name}"
        if is_placeholder(value):  # which may have another name where it is defined
            place = f"{value.__module__}.{value.__name__}"
        problems.append(problem_of(place, value))
        for member in names.classes.get(name, []) if not is_placeholder(value) else []:
            problems.append(problem_of(f"{place}.{member}", getattr(value, member)))
problems = list(filter(None, problems))
told = {}
for name in sys.argv[1:]:
    module, _, last = name.rpartition(".")
    try:
        getattr(importlib.import_module(f"deepspeed.{module}"), last)()
    except NotImplementedError as error:
        told[name] = str(error)
print(json.dumps({"walked": walked, "problems": problems, "told": told}))
"""

# What the message about a name has to tell, by the name.
TOLD = {
    "launcher.multinode_runner.SlurmRunner": "--hostfile FILE --launcher NAME",
    "runtime.data_pipeline.data_routing.helper.convert_to_random_ltd": "drop tokens in the model's",
    "runtime.zero.offload_states.reload_adam_states": "engine.reload_states()",
}


def test_every_name_of_deepspeed_works_or_says_what_does() -> None:
    found = json.loads(python("-c", WALK, *TOLD, ZERORUN_COMPAT="").splitlines()[-1])
    assert found["problems"] == []
    assert found["walked"] > 3000
    told = found["told"]
    assert {name: text for name, text in TOLD.items() if text not in told[name]} == {}


def test_the_page_is_what_the_stand_in_has() -> None:
    script = ROOT / "scripts" / "deepspeed_page.py"
    page = python(script, ZERORUN_COMPAT="")
    assert page == (ROOT / "docs" / "deepspeed_names.md").read_text().strip(), (
        f"PYTHONPATH=build/release/python {script} > docs/deepspeed_names.md"
    )
