"""What is read of a run's metrics files, in whatever state they are."""

import gc
import json
from pathlib import Path

import pytest
from metrics_files import RUN, line, write
from zerorun.metrics import MetricsFile
from zerorun.report import read_run
from zerorun.report import reader as reader_module
from zerorun.report.page import data_of
from zerorun.report.reader import MOST, Columns, RunReader


def test_files_of_more_ranks_than_the_run_has_are_an_older_runs(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl")
    for rank in (1, 2, 3):
        write(path, rank=rank)
    assert sorted(read_run(path).ranks) == [0, 1]


def test_collectives_without_times_have_bytes(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.jsonl", collectives={"a": [1, 10, None], "b": [1, 10], "c": [1, 2, 3]}
    )
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
    for step in range(1, count + 1):
        columns.add({"step": step, "loss": float(step), "skipped": step == 777})
    table = columns.table()
    assert MOST <= len(table["step"]) < 2 * MOST
    assert table["step"][-1] == count
    assert columns.skipped == [777]
    assert columns.mean("loss") == pytest.approx((count + 1) / 2)
    assert columns.skipped_count == 1
    width = table["step"][1] - table["step"][0]
    assert table["loss"][0] == pytest.approx((width + 1) / 2)


def test_a_thinned_loss_scale_is_one_that_was_and_all_skipped_steps_count() -> None:
    columns = Columns()
    for step in range(1, 100_001):  # every other step is skipped, so the scale falls as often
        columns.add(
            {"step": step, "loss_scale": 4.0 if step % 2 else 8.0, "skipped": step % 2 == 0}
        )
    assert set(columns.table()["loss_scale"]) <= {4.0, 8.0}
    assert (columns.skipped_count, columns.scale_falls) == (50_000, 49_999)


def test_a_second_look_reads_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.jsonl", steps=3)
    reader, parsed = RunReader(path), []
    assert reader.look().first.columns.steps == 3
    parse = reader_module.parse_line
    monkeypatch.setattr(
        reader_module, "parse_line", lambda text: parsed.append(text) or parse(text)
    )
    with path.open("a") as file:
        file.write(json.dumps(line(4)) + "\n" + json.dumps(line(5))[:30])
    run = reader.look()
    assert (run.first.columns.steps, run.bad_lines, len(parsed)) == (4, 0, 1)
    with path.open("a") as file:
        file.write(json.dumps(line(5))[30:] + "\n")
    run = reader.look()
    assert (run.first.columns.steps, run.bad_lines, len(parsed)) == (5, 0, 2)
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
    lines = [line(step, rank=rank) for step in range(1, 6) for rank in (0, 1)]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    run = read_run(path)
    assert [run.ranks[rank].columns.steps for rank in (0, 1)] == [5, 5]
