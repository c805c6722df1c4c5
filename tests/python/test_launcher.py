"""The launcher with Python programs and on a terminal, as users meet it."""

import json
import os
import signal
import subprocess
import sys

import pytest
from ranks import passed, ran
from terminal import Terminal

DEADLINE = 60

REPORT = """
import json, os, sys  # a program that takes --local_rank
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "PYTHONUNBUFFERED")
print(json.dumps([[os.environ[name] for name in names], sys.argv[1:], sys.path]))
"""
# This environment, without what an outer job or virtual environment says.
HIDDEN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "VIRTUAL_ENV", "PYTHONPATH", "OMP_NUM_THREADS")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in HIDDEN}


@pytest.fixture
def command(zerorun):
    """The launcher with CPU ranks; options and a program follow."""
    return [str(zerorun), "--accelerator", "cpu"]


@pytest.fixture
def launch(command, tmp_path):
    """Runs a job in tmp_path until it ends; of `program`, if that is given, as train.py."""

    def run(*arguments, program=None, **variables):
        if program is not None:
            (tmp_path / "train.py").write_text(program)
        words = [*command, *map(str, arguments)]
        return ran(words, cwd=tmp_path, env=ENVIRONMENT | variables, timeout=DEADLINE)

    return run


def reports_of(result):
    """Of each rank: its variables, its arguments, and where Python looks for modules."""
    return sorted(json.loads(line) for line in passed(result).stdout.splitlines())


def test_script_gets_local_rank_before_its_arguments(launch):
    result = launch("--num_gpus", 2, "train.py", "--num_gpus", "7", "x", program=REPORT)
    for rank, (variables, arguments, _) in enumerate(reports_of(result)):
        assert variables == [str(rank), str(rank), "2", "1"]
        assert arguments == [f"--local_rank={rank}", "--num_gpus", "7", "x"]


STRICT = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("{}")
print(vars(parser.parse_args()), os.environ["LOCAL_RANK"])
"""


@pytest.mark.parametrize(
    ("option", "arguments", "told"),
    [
        ("--local_rank", [], "{'local_rank': '0'} 0\n"),
        ("--local-rank", [], "{'local_rank': '0'} 0\n"),
        ("--lr", ["--lr=1"], "{'lr': '1'} 0\n"),
    ],
)
def test_a_parser_gets_local_rank_in_its_spelling_or_not(launch, option, arguments, told):
    assert launch("train.py", *arguments, program=STRICT.format(option)).stdout == told


@pytest.mark.parametrize("words", [["--module", "my.train"], ["my/train.py"]])
def test_modules_and_scripts_import_from_the_working_directory(tmp_path, launch, words):
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "train.py").write_text(REPORT)
    ((_, arguments, path),) = reports_of(launch(*words, "x"))
    assert arguments == ["--local_rank=0", "x"]
    assert str(tmp_path) in path


# As a thread of gloo: it still runs when the program has ended, and dies with the interpreter.
LATE_THREAD = """
import hashlib, os, sys, threading, types
group = types.ModuleType("torch.distributed")
group.is_available, group.is_initialized = lambda: True, lambda: not {destroyed}
sys.modules["torch.distributed"] = group
named = threading.Event()
def work():
    with open(f"/proc/self/task/{{threading.get_native_id()}}/comm", "w") as name:
        name.write("pt_gloo_runloop")
    named.set()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 30_000)  # 10 ms, without the interpreter's lock
    os.write(1, b"finished\\n")
threading.Thread(target=work, daemon=True).start()
named.wait()
"""


@pytest.mark.parametrize("destroyed", [False, True])
def test_a_program_with_a_process_group_waits_for_its_threads(launch, destroyed):
    program = LATE_THREAD.format(destroyed=destroyed)
    assert launch("train.py", program=program).stdout == "finished\n"


def test_a_sitecustomize_of_the_users_runs_all_the_same(tmp_path, launch):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'mine'\n")
    program = "import sitecustomize\nprint(mine, sitecustomize.__file__)\n"
    told = launch("train.py", program=program).stdout
    assert told == f"mine {tmp_path / 'sitecustomize.py'}\n"


def test_script_that_does_not_take_local_rank_is_explained(launch):
    program = STRICT.format("--lr")
    result = launch("--num_gpus", 2, "--local_rank=always", "train.py", program=program)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].endswith("start it with zerorun --local_rank never")


def test_a_python_without_zerorun_is_told_where_it_is(tmp_path, launch, zerorun):
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)  # of another environment: none of its packages
    variables = {"VIRTUAL_ENV": str(tmp_path / "env"), "PYTHONNOUSERSITE": "1"}
    job = launch("train.py", program="import zerorun", **variables)
    assert job.returncode == 1
    cause = job.stderr.splitlines()[-1]
    folder = zerorun.resolve().parents[1] / "python"
    interpreter = os.readlink(folder / "interpreter")
    assert cause == (
        f"[zerorun] likely cause: {python} does not have the package zerorun; this zerorun's is "
        f"for {interpreter}: set ZERORUN_PYTHON={interpreter} and PYTHONPATH={folder}, or run "
        "`pip install .` in zerorun's sources for the environment that you use"
    )
    remedy = {"ZERORUN_PYTHON": interpreter, "PYTHONPATH": str(folder)}
    assert launch("train.py", **remedy).returncode == 0


ASK = """
import os, sys
if os.environ["RANK"] == "0":
    print("terminal:", sys.stdin.isatty(), sys.stdout.isatty())
    print("\\r 50%", end="", file=sys.stderr, flush=True)
    print("hello", input("name? "))
"""
SAVE = """
import os, time
try:
    os.write(1, f"ready {os.environ['RANK']}\\n".encode())
    time.sleep(1000)
except KeyboardInterrupt:
    os.write(1, f"saved {os.environ['RANK']}\\n".encode())
"""


@pytest.fixture
def terminal(tmp_path, command):
    """Starts a program on two ranks, on a terminal."""

    def start(program):
        (tmp_path / "train.py").write_text(program)
        return Terminal([*command, "--num_gpus", "2", "train.py"], tmp_path, ENVIRONMENT)

    return start


def test_rank_0_keeps_the_terminal_and_progress_appears_at_once(terminal):
    started = terminal(ASK)
    for text in ("terminal: True True", " 50%", "name? "):
        started.read_until(text)
    started.type("Ada\n")
    assert started.wait() == 0
    assert "hello Ada" in started.text


def test_control_c_on_a_terminal_lets_ranks_save(terminal):
    started = terminal(SAVE)
    for rank in range(2):
        started.read_until(f"ready {rank}")
    started.type("\x03")
    assert started.wait() == 128 + signal.SIGINT
    assert all(f"saved {rank}" in started.text for rank in range(2))


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["plan", "--model", "gpt2"]])
def test_output_that_a_full_disk_takes_is_an_error(zerorun, arguments):
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [zerorun, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 1
    assert "cannot write to standard output: No space left on device" in result.stderr
