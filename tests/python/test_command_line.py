"""Commands that are written in Python answer wrong options and paths as those in C++ do."""

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from zerorun import consolidate, conversion, top
from zerorun.command_line import exit_with
from zerorun.monitor import __main__ as monitor
from zerorun.report import __main__ as report
from zerorun.tune import __main__ as tune
from zerorun.whole_file import write_text

Main = Callable[[list[str]], int]


@pytest.mark.parametrize(
    ("main", "words", "message"),
    [
        (report.main, ["m.jsonl", "--qqqqqqq"], "--qqqqqqq; see zerorun report --help"),
        (top.main, ["--intervall", "2"], "option --intervall; did you mean --interval?"),
        (monitor.main, ["--tensorbord=x", "m"], "option --tensorbord; did you mean --tensorboard?"),
        (conversion.main, ["export", "x", "--dtpye", "fp32"], "--dtpye; did you mean --dtype?"),
        (consolidate.main, ["a", "b", "--dtpye", "fp32"], "--dtpye; did you mean --dtype?"),
        (top.main, [], "the following arguments are required: RUN"),
    ],
)
def test_an_unknown_option_names_the_nearest(
    main: Main, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("zerorun")
    assert message in line


@pytest.mark.parametrize("main", [report.main, top.main])
def test_a_missing_file_is_bad_input_and_shown_without_control_bytes(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none\033[31m")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "none\\x1b[31m" in line


def test_a_full_disk_keeps_the_old_page_and_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, page = tmp_path / "m.jsonl", tmp_path / "r.html"
    run.write_text('{"step": 1, "loss": 2.0}\n')
    page.write_text("old")

    def full(_number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert report.main([str(run), "-o", str(page)]) == 1
    assert capsys.readouterr().err == f"zerorun report: error: {page}: No space left on device\n"
    assert page.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.jsonl", "r.html"]


def test_a_monitor_that_fails_is_the_commands_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = tmp_path / "m.jsonl", tmp_path / "csv"
    run.write_text('{"step": 1, "loss": 2.0}\n')
    (folder / "m" / "Train_Samples_train_loss.csv").mkdir(parents=True)  # where a file has to be
    assert monitor.main([str(run), "--csv", str(folder)]) == 1
    assert "csv_monitor failed" in capsys.readouterr().err


@pytest.mark.usefixtures("capsys")  # the output that exit_with would replace is not pytest's
@pytest.mark.parametrize(
    ("closed", "error"),
    [
        (False, OSError(errno.ENOENT, "it failed")),
        (False, OSError(errno.ENOSPC, "it failed", "page.html")),
        (True, OSError(errno.EIO, "it failed")),
    ],
)
def test_an_error_that_is_not_of_the_output_is_not_told_as_one(
    closed: bool, error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise error

    if closed:
        monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(OSError, match="it failed"):
        exit_with(fail)


def test_a_best_command_that_cannot_be_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [str(tmp_path / "launcher")]
    options = SimpleNamespace(results=tmp_path, then_run=True)
    search = SimpleNamespace(trials=[], best=None)
    monkeypatch.setattr(tune, "parse", lambda _: options)
    monkeypatch.setattr(tune, "_tune", lambda _: (search, False))
    monkeypatch.setattr(tune, "_keep", lambda *_: command)
    assert tune.main([]) == 2
    told = f"zerorun tune: error: {command[0]}: No such file or directory\n"
    assert capsys.readouterr().err == told


def test_tuning_refuses_what_the_launcher_refuses_before_it_runs(
    zerorun: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tmp_path / "ds_config.json"
    write_text(config, '{"train_micro_batch_size_per_gpu": 1}')
    monkeypatch.chdir(tmp_path)
    assert tune.main([f"--command={zerorun}", str(config), "--num_gpuss", "2", "--", "train"]) == 2
    assert "unknown option --num_gpuss; did you mean --num_gpus?" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["ds_config.json"]
