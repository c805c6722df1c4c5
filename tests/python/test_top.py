"""`zerorun top`: the last step of each rank, of files of any state."""

import contextlib
import json
import os
import pty
import subprocess
from pathlib import Path

import pytest
from ranks import environment
from zerorun.metrics import MetricsFile
from zerorun.top import latest, main, table


def write(path: Path, rank: int, steps: int) -> Path:
    file = MetricsFile(path, rank, 2, {})
    for step in range(1, steps + 1):
        figures = {"forward_ms": 30.0, "backward_ms": 60.0, "comm_ms": 5.0, "rss_bytes": 3 << 30}
        file({"step": step, "loss": 4.0 / step, "tokens_per_s": 12345.6} | figures)
    return path


def test_each_ranks_last_step_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "m.jsonl", 0, 2000)
    write(path, 1, 1999)
    with path.open("a") as file:
        file.write('{"step": 2001, "lo')
    assert main([str(path)]) == 0
    title, head, *rows = capsys.readouterr().out.splitlines()
    assert title == f"2 ranks: {path}"
    assert head.split() == ["rank", "step", "loss", "compute", "comm", "tokens/s", "memory", "ago"]
    assert [row.split()[:2] for row in rows] == [["0", "2000"], ["1", "1999"]]
    assert rows[0].split()[3:7] == ["85.0", "5.0", "12.35k", "3G"]


def test_ranks_that_are_mixed_in_a_file_and_its_end_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    lines = [{"step": step, "rank": rank} for step in (1, 2) for rank in (0, 1)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_text(text + "[1]\ngarbage\n" + '{"param_hash": "0"}\n')
    found = latest(path)
    assert {rank: line["step"] for rank, line in found.lines.items()} == {0: 2, 1: 2}
    assert table(found, "m")[0] == "2 ranks, ended: m"


def test_an_interval_is_a_time(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "m.jsonl"), "--interval", "0"])


def test_in_a_terminal_it_follows_the_run_to_its_end(
    zerorun: Path, build: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "m.jsonl", 0, 1)
    terminal, its = pty.openpty()
    job = subprocess.Popen(
        [zerorun, "top", path, "--interval", "0.1"], env=environment(build), stdout=its
    )
    os.close(its)
    seen = os.read(terminal, 1 << 16).decode()
    assert "1 rank" in seen
    with path.open("a") as file:
        file.write('{"step": 7, "loss": 0.5}\n{"param_hash": "0"}\n')
    with contextlib.suppress(OSError):  # what Linux says where nobody has the other end any more
        while news := os.read(terminal, 1 << 16):
            seen += news.decode()
    os.close(terminal)
    assert job.wait(timeout=30) == 0
    assert "1 rank, ended" in seen
    assert seen.count("\x1b[H") > 1
