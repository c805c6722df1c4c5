"""`zerorun completion` in real shells, and `zerorun help`."""

import io
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import passed, ran
from terminal import Terminal
from zerorun import conversion, top
from zerorun.command_line import ProgressBar
from zerorun.explain import __main__ as explain
from zerorun.monitor import __main__ as monitor
from zerorun.report import __main__ as report
from zerorun.tune import options as tune

DEADLINE = 60
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


def path_with(zerorun: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{zerorun.parent}:{os.environ['PATH']}", "TERM": "dumb"}


def run(zerorun: Path, *command: str) -> list[str]:
    job = passed(ran(command, timeout=DEADLINE, env=path_with(zerorun)))
    assert job.stderr == ""
    return job.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("zerorun ver", ["version"]),
        ("zerorun ckpt ver", ["verify"]),
        ("zerorun --accelerator ", ["auto", "cpu", "cuda"]),
        ("zerorun --accelerator=c", ["cpu", "cuda"]),  # behind the '=', where bash cuts
        ("zerorun --num_gpus 2 train --dt", ["--dtype"]),
        ("zerorun my_script", [""]),  # then bash completes files
    ],
)
def test_bash_completes(zerorun: Path, line: str, expected: list[str]) -> None:
    *found, rule = run(zerorun, "bash", "--norc", "-c", BASH, "bash", line)
    assert found == expected
    assert rule == "complete -o bashdefault -o default -F _zerorun zerorun"


@pytest.mark.parametrize(
    ("tool", "help_of"),
    [
        ("report", lambda: report.main(["--help"])),
        ("monitor", lambda: monitor.main(["--help"])),
        ("top", lambda: top.main(["--help"])),
        ("explain", lambda: explain.main(["--help"])),
        ("tune", lambda: tune.parse(["--command=x", "--help", "--", "train"])),
        ("ckpt import", lambda: conversion.main(["import", "--help"])),
        ("ckpt export", lambda: conversion.main(["export", "--help"])),
    ],
)
def test_tools_in_python_complete_the_options_that_they_have(
    zerorun: Path, capsys: pytest.CaptureFixture[str], tool: str, help_of: Callable[[], object]
) -> None:
    with pytest.raises(SystemExit):
        help_of()
    options = re.findall(r"^ +(?:-\w(?: [A-Z]+)?, )?(--\w+)", capsys.readouterr().out, re.MULTILINE)
    found = run(zerorun, str(zerorun), "completion", "--words", *tool.split(), "--")
    assert {line.split("\t")[0] for line in found} == set(options)


def test_a_progress_bar_is_for_terminals_and_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_fish_completes(zerorun: Path, tmp_path: Path) -> None:
    def complete(line: str) -> list[str]:
        return [found.split("\t")[0] for found in run(zerorun, "fish", "-N", "-c", FISH, line)]

    assert complete("zerorun ckpt ver") == ["verify"]
    assert complete("zerorun --accelerator=c") == ["--accelerator=cpu", "--accelerator=cuda"]
    (tmp_path / "my_script.py").touch()
    assert complete(f"zerorun {tmp_path}/my_s") == [f"{tmp_path}/my_script.py"]


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh")
def test_zsh_completes(zerorun: Path) -> None:
    """On a terminal, where alone zsh completes: a line with the tabulator in it runs."""
    terminal = Terminal(["zsh", "-f", "-i"], ".", path_with(zerorun))
    lines = ["autoload -Uz compinit; compinit -u -D", 'eval "$(zerorun completion zsh)"']
    terminal.type("\n".join([*lines, "zerorun ckpt ver\t --help; exit\n"]))
    assert terminal.wait() == 0, terminal.text
    assert "Usage: zerorun ckpt verify" in terminal.text


def test_help(zerorun: Path) -> None:
    """Its text, and that of all topics, is docs/command_line.md (test_documents.py)."""
    listed = run(zerorun, "zerorun", "help")
    assert "\n".join(listed[:10]) in "\n".join(run(zerorun, "zerorun", "--help"))
    # Its file is taken as DeepSpeed's ds_elastic does, and without an option: neither is required.
    assert not any(
        "Required" in line for line in run(zerorun, "zerorun", "config", "elastic", "--help")
    )
    job = ran([zerorun, "help", "nosuch"])
    assert job.returncode == 2
    assert "zerorun help has no topic 'nosuch'; zerorun help lists the topics" in job.stderr
