"""What is read of a run's metrics files, in whatever state they are."""

import gc
import json
from pathlib import Path

import pytest
from metrics_files import RUN, line, write
from ranks import environment
from terminal import Terminal
from zerorun.metrics import MetricsFile
from zerorun.monitor.__main__ import main as monitor_main
from zerorun.report import read_run
from zerorun.report import reader as reader_module
from zerorun.report.page import data_of
from zerorun.report.reader import MOST, Columns, RunReader
from zerorun.top import latest
from zerorun.top import main as top_main


def test_files_of_more_ranks_than_the_run_has_are_an_older_runs(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl")
    for rank in (1, 2, 3):
        write(path, rank=rank)
    assert sorted(read_run(path).ranks) == [0, 1]


def test_collectives_without_times_have_bytes(tmp_path: Path) -> None:
    given = {"a": [1, 10, None], "b": [1, 10], "c": [1, 2, 3]}
    path = write(tmp_path / "m.jsonl", collectives=given)
    found = data_of([read_run(path)])["runs"][0]["collectives"]
    assert found == {"a": [10, 100, 0.0], "b": [10, 100, 0.0], "c": [10, 20, 30.0]}


def test_a_run_that_resumed_shows_its_last_course(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", steps=10)
    file = MetricsFile(path, 0, 2, RUN)
    for step in (6, 7, 8):
        file(line(step, loss=0.5))
    table = read_run(path).first.columns.table()
    assert table["step"] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert table["loss"][5:] == [0.5, 0.5, 0.5]


def test_a_full_disk_is_an_error_that_names_the_file_and_nothing_is_written_later() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        MetricsFile("/dev/full", 0, 2, RUN)
    gc.collect()  # what failed to be closed would warn


def test_any_number_of_steps_becomes_some_points() -> None:
    columns, count = Columns(), 100_000
    for step in range(1, count + 1):  # every other one is skipped, so the scale falls as often
        scale = {"loss_scale": 4.0 if step % 2 else 8.0, "skipped": step % 2 == 0}
        columns.add({"step": step, "loss": float(step)} | scale)
    table = columns.table()
    assert MOST <= len(table["step"]) < 2 * MOST
    assert table["step"][-1] == count
    assert columns.mean("loss") == pytest.approx((count + 1) / 2)
    width = table["step"][1] - table["step"][0]
    assert table["loss"][0] == pytest.approx((width + 1) / 2)
    assert set(table["loss_scale"]) <= {4.0, 8.0}
    assert (columns.skipped_count, columns.scale_falls) == (50_000, 49_999)


def test_a_second_look_reads_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.jsonl", steps=3)
    reader, parsed = RunReader(path), []
    assert reader.look().first.columns.steps == 3
    parse = reader_module.parse_line
    monkeypatch.setattr(
        reader_module, "parse_line", lambda text: parsed.append(text) or parse(text)
    )
    four, five = json.dumps(line(4)), json.dumps(line(5))
    for text, steps in ((f"{four}\n{five[:30]}", 4), (f"{five[30:]}\n", 5)):
        with path.open("a") as file:
            file.write(text)
        run = reader.look()
        assert (run.first.columns.steps, run.bad_lines, len(parsed)) == (steps, 0, steps - 3)
    assert read_run(path).first.columns.table() == run.first.columns.table()
    path.unlink()  # another run has taken its place
    write(path, steps=2)
    assert reader.look().first.columns.steps == 2
    path.write_text(json.dumps(line(1)) + "\n")  # or begins the file anew
    assert reader.look().first.columns.steps == 1


def test_bad_lines_are_counted_not_fatal(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl")
    with path.open("a") as file:
        file.write('{"step": 11, "loss"\n[1]\n{"step": "x"}\n\n{"step": 12, "lo')
    run = read_run(path)
    assert (run.first.columns.steps, run.bad_lines) == (10, 4)
    file = MetricsFile(path, 0, 2, RUN)  # a run that goes on begins a line of its own
    file(line(11))
    assert read_run(path).first.columns.steps == 11


def test_ranks_that_are_mixed_in_a_file_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    lines = [line(step, rank=rank, loss=rank + 0.5) for step in (1, 2) for rank in (1, 0)]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines) + "[1]\ngarbage\n")
    run = read_run(path)
    assert [run.ranks[rank].columns.steps for rank in (0, 1)] == [2, 2]
    found = latest(path)
    assert {rank: line["step"] for rank, line in found.lines.items()} == {0: 2, 1: 2}
    assert monitor_main([str(path), "--csv", str(tmp_path)]) == 0  # it gets those of the first
    rows = (tmp_path / "m" / "Train_Samples_train_loss.csv").read_text().split()
    assert rows == ["step,train_loss", "8,1.5", "16,1.5"]


def test_each_ranks_last_step_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"tokens_per_s": 12345.6, "rss_bytes": 3 << 30}
    path = write(tmp_path / "m.jsonl", steps=2000, **figures)
    write(path, rank=1, steps=1999)
    with path.open("a") as file:
        file.write('{"step": 2001, "lo')
    assert top_main([str(path)]) == 0
    title, head, *rows = capsys.readouterr().out.splitlines()
    assert title == f"2 ranks: {path}"
    assert {"rank", "step", "loss", "compute", "comm", "tokens/s", "memory", "ago"} <= set(
        head.split()
    )
    assert [row.split()[:2] for row in rows] == [["0", "2000"], ["1", "1999"]]
    assert {"85.0", "5.0", "12.35k", "3G"} <= set(rows[0].split())
    with pytest.raises(SystemExit):
        top_main([str(path), "--interval", "0"])


def test_in_a_terminal_top_follows_the_run_to_its_end(
    zerorun: Path, build: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "m.jsonl", steps=1)
    terminal = Terminal([zerorun, "top", path, "--interval", "0.1"], tmp_path, environment(build))
    terminal.read_until("1 rank")
    with path.open("a") as file:
        file.write('{"step": 7, "loss": 0.5}\n{"param_hash": "0"}\n')
    assert terminal.wait() == 0
    assert "1 rank, ended" in terminal.text
    assert terminal.text.count("\x1b[H") > 1
