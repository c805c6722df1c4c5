"""The launcher with Python programs and on a terminal, as users meet it.

The environment variable ZERORUN_COMMAND names another executable than the release build's.
"""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import textwrap

import pytest
from ranks import ran

DEADLINE = 60

REPORT = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "PYTHONUNBUFFERED")
# A program that takes --local_rank.
print(json.dumps({
    "environment": {name: os.environ[name] for name in names},
    "arguments": sys.argv[1:],
    "path": sys.path,
    "python": sys.executable,
}))
"""


@pytest.fixture
def environment():
    """This one, without what an outer job or virtual environment says."""
    hidden = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "VIRTUAL_ENV", "PYTHONPATH", "OMP_NUM_THREADS")
    return {name: value for name, value in os.environ.items() if name not in hidden}


@pytest.fixture
def command(zerorun):
    """The launcher with CPU ranks; options and a program follow."""
    return [os.environ.get("ZERORUN_COMMAND") or str(zerorun), "--accelerator", "cpu"]


@pytest.fixture
def launch(command, environment, tmp_path):
    """Runs a job in tmp_path until it ends; of `program`, if that is given, as train.py."""

    def run(*arguments, program=None, **variables):
        if program is not None:
            (tmp_path / "train.py").write_text(textwrap.dedent(program))
        return ran(
            [*command, *map(str, arguments)],
            cwd=tmp_path,
            env=environment | variables,
            timeout=DEADLINE,
        )

    return run


def reports_of(result):
    assert result.returncode == 0, result.stderr
    reports = [json.loads(line) for line in result.stdout.splitlines()]
    return sorted(reports, key=lambda report: report["environment"]["RANK"])


def test_script_gets_local_rank_before_its_arguments(tmp_path, launch):
    result = launch("--num_gpus", 2, "train.py", "--num_gpus", "7", "x", program=REPORT)
    for rank, report in enumerate(reports_of(result)):
        assert report["arguments"] == [f"--local_rank={rank}", "--num_gpus", "7", "x"]
        assert report["environment"] == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "PYTHONUNBUFFERED": "1",
        }


STRICT = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
local_rank = int(os.environ["LOCAL_RANK"])
print(parser.parse_args().lr, local_rank)
"""


@pytest.mark.parametrize("name", ["--local_rank", "--local-rank"])
def test_a_parser_gets_local_rank_in_its_spelling(tmp_path, launch, name):
    script = f"import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('{name}')\n"
    assert (
        launch("train.py", program=script + "print(parser.parse_args().local_rank)\n").stdout
        == "0\n"
    )


def test_a_strict_parser_without_local_rank_runs_as_it_is(tmp_path, launch):
    assert launch("train.py", "--lr=1", program=STRICT).stdout == "1.0 0\n"


def test_module_runs_from_the_working_directory(tmp_path, launch):
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "train.py").write_text(REPORT)
    result = launch("--module", "my.train", "x")
    assert reports_of(result)[0]["arguments"] == ["--local_rank=0", "x"]


def test_script_elsewhere_imports_from_the_working_directory(tmp_path, launch):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text(REPORT)
    result = launch("scripts/train.py")
    path = reports_of(result)[0]["path"]
    assert path[0] == str(tmp_path / "scripts")
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
def test_a_program_with_a_process_group_waits_for_its_threads(tmp_path, launch, destroyed):
    assert (
        launch("train.py", program=LATE_THREAD.format(destroyed=destroyed)).stdout == "finished\n"
    )


def test_a_sitecustomize_of_the_users_runs_all_the_same(tmp_path, launch):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'mine'\n")
    (tmp_path / "train.py").write_text(
        "import sitecustomize\nprint(mine, sitecustomize.__file__)\n"
    )
    assert launch("train.py").stdout == f"mine {tmp_path / 'sitecustomize.py'}\n"


def test_activated_environment_provides_python(tmp_path, launch):
    (tmp_path / "train.py").write_text(REPORT)
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "venv"], cwd=tmp_path, check=True
    )
    result = launch("train.py", VIRTUAL_ENV=str(tmp_path / "venv"))
    assert reports_of(result)[0]["python"] == str(tmp_path / "venv" / "bin" / "python")


def test_script_that_does_not_take_local_rank_is_explained(tmp_path, launch):
    result = launch("--num_gpus", 2, "--local_rank=always", "train.py", program=STRICT)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].endswith("start it with zerorun --local_rank never")


def test_a_python_without_zerorun_is_told_where_it_is(tmp_path, launch, zerorun):
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)  # of another environment: none of its packages
    (tmp_path / "loop.py").write_text("import zerorun")
    job = launch("loop.py", VIRTUAL_ENV=str(tmp_path / "env"), PYTHONNOUSERSITE="1")
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
    assert launch("loop.py", **remedy).returncode == 0


class Terminal:
    """A pseudo-terminal on which a command runs in the foreground."""

    def __init__(self, command, cwd, env):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execvpe(command[0], command, env)
        self.text = ""

    def read_until(self, expected):
        while expected not in self.text:
            ready, _, _ = select.select([self.master], [], [], DEADLINE)
            assert ready, f"no '{expected}' in: {self.text}"
            self.text += os.read(self.master, 65536).decode()

    def type(self, text):
        os.write(self.master, text.encode())

    def wait(self):
        try:
            while chunk := os.read(self.master, 65536):
                self.text += chunk.decode()
        except OSError:  # the terminal is closed by its last user
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self.master)
        return os.waitstatus_to_exitcode(status)


def test_rank_zero_keeps_the_terminal(tmp_path, command, environment):
    (tmp_path / "ask.py").write_text(
        textwrap.dedent("""
        import os, sys
        if os.environ["RANK"] == "0":
            print("terminal:", sys.stdin.isatty(), sys.stdout.isatty())
            print("hello", input("name? "))
        """)
    )
    terminal = Terminal([*command, "--num_gpus", "2", "ask.py"], tmp_path, environment)
    terminal.read_until("terminal: True True")
    terminal.read_until("name? ")
    terminal.type("Ada\n")
    assert terminal.wait() == 0
    assert "hello Ada" in terminal.text


def test_progress_bars_on_standard_error_appear_at_once(tmp_path, command, environment):
    (tmp_path / "bar.py").write_text(
        "import sys\nprint('\\r 50%', end='', file=sys.stderr, flush=True)\ninput()\n"
    )
    terminal = Terminal([*command, "bar.py"], tmp_path, environment)
    terminal.read_until("50%")
    terminal.type("\n")
    assert terminal.wait() == 0


def test_control_c_on_a_terminal_lets_ranks_save(tmp_path, command, environment):
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import os, time
        try:
            os.write(1, f"ready {os.environ['RANK']}\\n".encode())
            time.sleep(1000)
        except KeyboardInterrupt:
            os.write(1, f"saved {os.environ['RANK']}\\n".encode())
        """)
    )
    terminal = Terminal([*command, "--num_gpus", "2", "train.py"], tmp_path, environment)
    terminal.read_until("ready 0")
    terminal.read_until("ready 1")
    terminal.type("\x03")
    assert terminal.wait() == 128 + signal.SIGINT
    assert "saved 0" in terminal.text
    assert "saved 1" in terminal.text


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["plan", "--model", "gpt2"]])
def test_output_that_a_full_disk_takes_is_an_error(zerorun, arguments):
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [zerorun, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 1
    assert "cannot write to standard output: No space left on device" in result.stderr
