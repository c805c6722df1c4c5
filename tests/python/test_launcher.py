"""The launcher with Python programs and on a terminal, as users meet it; `zerorun completion` in
real shells, and `zerorun help`."""

import io

from prelude import *
from terminal import Terminal
from zerorun import conversion, top
from zerorun.command_line import ProgressBar
from zerorun.explain import __main__ as explain
from zerorun.monitor import __main__ as monitor
from zerorun.report import __main__ as report
from zerorun.tune import options as tune

DEADLINE = 60

REPORT = """
import json, os, sys  # a program that takes --local_rank
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "PYTHONUNBUFFERED")
print(json.dumps([[os.environ[name] for name in names], sys.argv[1:], sys.path]))
"""
# This environment, without what an outer job or virtual environment says.
HIDDEN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "VIRTUAL_ENV", "PYTHONPATH", "OMP_NUM_THREADS")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in HIDDEN}
COMMAND = [str(ZERORUN), "--accelerator", "cpu"]  # options and a program follow


@pytest.fixture
def launch(tmp_path):
    """Runs a job in tmp_path until it ends; of `program`, if that is given, as train.py."""

    def run(*arguments, program=None, **variables):
        if program is not None:
            (tmp_path / "train.py").write_text(program)
        words = [*COMMAND, *map(str, arguments)]
        return ran(words, cwd=tmp_path, env=ENVIRONMENT | variables, timeout=DEADLINE)

    return run


STRICT = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("{}")
print(vars(parser.parse_args()), os.environ["LOCAL_RANK"])
"""


@each(
    "option arguments told",
    ("--local_rank", [], "{'local_rank': '0'} 0\n"),
    ("--local-rank", [], "{'local_rank': '0'} 0\n"),
    ("--lr", ["--lr=1"], "{'lr': '1'} 0\n"),
)
def test_a_parser_gets_local_rank_in_its_spelling_or_not(launch, option, arguments, told):
    assert launch("train.py", *arguments, program=STRICT.format(option)).stdout == told


@each("words", ["--module", "my.train"], ["my/train.py"])
def test_modules_and_scripts_get_local_rank_and_import_from_the_folder(tmp_path, launch, words):
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "train.py").write_text(REPORT)
    result = passed(launch("--num_gpus", 2, *words, "--num_gpus", "7", "x"))
    for rank, line in enumerate(sorted(result.stdout.splitlines())):
        variables, arguments, path = json.loads(line)
        assert variables == [str(rank), str(rank), "2", "1"]
        assert arguments == [f"--local_rank={rank}", "--num_gpus", "7", "x"]
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


@each("destroyed", False, True)
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


def test_a_python_without_zerorun_is_told_where_it_is(tmp_path, launch):
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)  # of another environment: none of its packages
    variables = {"VIRTUAL_ENV": str(tmp_path / "env"), "PYTHONNOUSERSITE": "1"}
    job = launch("train.py", program="import zerorun", **variables)
    assert job.returncode == 1
    cause = job.stderr.splitlines()[-1]
    folder = ZERORUN.resolve().parents[1] / "python"
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
def terminal(tmp_path):
    def start(program):
        (tmp_path / "train.py").write_text(program)
        return Terminal([*COMMAND, "--num_gpus", "2", "train.py"], tmp_path, ENVIRONMENT)

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


@each("arguments", "version", "--help", "plan --model gpt2")
def test_output_that_a_full_disk_takes_is_an_error(arguments):
    result = ran(["bash", "-c", f"{ZERORUN} {arguments} >/dev/full"])
    assert result.returncode == 1
    assert "cannot write to standard output: No space left on device" in result.stderr


# --- completion and help ---

# The word before the cursor ends the line.
BASH = """
set -u
eval "$(zerorun completion bash)"
COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=(zerorun) COMP_CWORD=0
_zerorun zerorun
printf '%s\\n' "${COMPREPLY[@]}"
complete -p zerorun
"""
FISH = 'zerorun completion fish | source; complete --do-complete "$argv[1]"'

ON_PATH = {**os.environ, "PATH": f"{ZERORUN.parent}:{os.environ['PATH']}", "TERM": "dumb"}


def printed(*command: str) -> list[str]:
    job = passed(ran(command, timeout=DEADLINE, env=ON_PATH))
    assert job.stderr == ""
    return job.stdout.splitlines()


@each(
    "line expected",
    ("zerorun ver", ["version"]),
    ("zerorun ckpt ver", ["verify"]),
    ("zerorun --accelerator ", ["auto", "cpu", "cuda"]),
    ("zerorun --accelerator=c", ["cpu", "cuda"]),  # behind the '=', where bash cuts
    ("zerorun --num_gpus 2 train --dt", ["--dtype"]),
    ("zerorun my_script", [""]),  # then bash completes files
)
def test_bash_completes(line: str, expected: list[str]) -> None:
    *found, rule = printed("bash", "--norc", "-c", BASH, "bash", line)
    assert found == expected
    assert rule == "complete -o bashdefault -o default -F _zerorun zerorun"


@each(
    "tool help_of",
    ("report", lambda: report.main(["--help"])),
    ("monitor", lambda: monitor.main(["--help"])),
    ("top", lambda: top.main(["--help"])),
    ("explain", lambda: explain.main(["--help"])),
    ("tune", lambda: tune.parse(["--command=x", "--help", "--", "train"])),
    ("ckpt import", lambda: conversion.main(["import", "--help"])),
    ("ckpt export", lambda: conversion.main(["export", "--help"])),
)
def test_tools_in_python_complete_their_options(capsys: Capture, tool: str, help_of: Any) -> None:
    with pytest.raises(SystemExit):
        help_of()
    options = re.findall(r"^ +(?:-\w(?: [A-Z]+)?, )?(--\w+)", capsys.readouterr().out, re.MULTILINE)
    found = printed(str(ZERORUN), "completion", "--words", *tool.split(), "--")
    assert {line.split("\t")[0] for line in found} == set(options)


def test_a_progress_bar_is_for_terminals_and_long_work(monkeypatch: Patch) -> None:
    file, terminal = io.StringIO(), io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    for written, after_s in ((file, 0.0), (terminal, 60.0)):
        with ProgressBar("reading", written, after_s) as bar:
            bar.show(1, 2)
        assert written.getvalue() == ""
    with ProgressBar("reading", terminal, after_s=0.0) as bar:
        bar.show(1, 2)
        while "50 %" not in terminal.getvalue():
            time.sleep(0.01)
    assert f"reading [{'#' * 15}{' ' * 15}]  50 %" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\033[K")


@pytest.mark.skipif(not shutil.which("fish"), reason="no fish")
def test_fish_completes(tmp_path: Path) -> None:
    def complete(line: str) -> list[str]:
        return [found.split("\t")[0] for found in printed("fish", "-N", "-c", FISH, line)]

    assert complete("zerorun ckpt ver") == ["verify"]
    assert complete("zerorun --accelerator=c") == ["--accelerator=cpu", "--accelerator=cuda"]
    (tmp_path / "my_script.py").touch()
    assert complete(f"zerorun {tmp_path}/my_s") == [f"{tmp_path}/my_script.py"]


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh")
def test_zsh_completes() -> None:
    """On a terminal, where alone zsh completes: a line with the tabulator in it runs."""
    terminal = Terminal(["zsh", "-f", "-i"], ".", ON_PATH)
    lines = ["autoload -Uz compinit; compinit -u -D", 'eval "$(zerorun completion zsh)"']
    terminal.type("\n".join([*lines, "zerorun ckpt ver\t --help; exit\n"]))
    assert terminal.wait() == 0, terminal.text
    assert "Usage: zerorun ckpt verify" in terminal.text


def test_help() -> None:
    """Its text, and that of all topics, is docs/command_line.md (test_documents.py)."""
    listed, told = (printed("zerorun", word) for word in ("help", "--help"))
    assert "\n".join(listed[:10]) in "\n".join(told)
    # Its file is taken as DeepSpeed's ds_elastic does, and without an option: neither is required.
    assert "Required" not in "".join(printed("zerorun", "config", "elastic", "--help"))
    job = ran([ZERORUN, "help", "nosuch"])
    assert job.returncode == 2
    assert "zerorun help has no topic 'nosuch'; zerorun help lists the topics" in job.stderr
