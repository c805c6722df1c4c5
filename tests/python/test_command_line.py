"""Commands that are written in Python answer wrong options as those in C++ do, and write whole
files, by zerorun.whole_file."""

import errno

from prelude import *
from zerorun import consolidate, conversion, top
from zerorun.command_line import exit_with
from zerorun.monitor import __main__ as monitor
from zerorun.report import __main__ as report
from zerorun.tune import __main__ as tune
from zerorun.whole_file import replacing, write_text

Main = Callable[[list[str]], int]


@each(
    "main words message",
    (report.main, ["m.jsonl", "--qqqqqqq"], "--qqqqqqq; see zerorun report --help"),
    (top.main, ["--intervall", "2"], "option --intervall; did you mean --interval?"),
    (monitor.main, ["--tensorbord=x", "m"], "option --tensorbord; did you mean --tensorboard?"),
    (conversion.main, ["export", "x", "--dtpye", "fp32"], "--dtpye; did you mean --dtype?"),
    (consolidate.main, ["a", "b", "--dtpye", "fp32"], "--dtpye; did you mean --dtype?"),
    (top.main, [], "the following arguments are required: RUN"),
)
def test_unknown_options_name_the_nearest(
    main: Any, words: Any, message: str, capsys: Capture
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("zerorun")
    assert message in line


def test_a_full_disk_keeps_a_page(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
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


def test_a_monitor_that_fails_is_the_commands_failure(tmp_path: Path, capsys: Capture) -> None:
    run, folder = tmp_path / "m.jsonl", tmp_path / "csv"
    run.write_text('{"step": 1, "loss": 2.0}\n')
    (folder / "m" / "Train_Samples_train_loss.csv").mkdir(parents=True)  # where a file has to be
    assert monitor.main([str(run), "--csv", str(folder)]) == 1
    assert "csv_monitor failed" in capsys.readouterr().err


@pytest.mark.usefixtures("capsys")  # the output that exit_with would replace is not pytest's
@each(
    "closed error",
    (False, OSError(errno.ENOENT, "it failed")),
    (False, OSError(errno.ENOSPC, "it failed", "page.html")),
    (True, OSError(errno.EIO, "it failed")),
)
def test_errors_are_not_told_as_the_outputs(
    closed: bool, error: OSError, monkeypatch: Patch
) -> None:
    def fail() -> int:
        raise error

    if closed:
        monkeypatch.setattr("sys.stdout", None)
    raises(OSError, "it failed", exit_with, fail)


def test_tuning_refuses_what_the_launcher_refuses_before_it_runs(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    config = tmp_path / "ds_config.json"
    write_text(config, '{"train_micro_batch_size_per_gpu": 1}')
    monkeypatch.chdir(tmp_path)
    assert tune.main([f"--command={ZERORUN}", str(config), "--num_gpuss", "2", "--", "train"]) == 2
    assert "unknown option --num_gpuss; did you mean --num_gpus?" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["ds_config.json"]


def test_a_file_is_replaced_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    with replacing(str(path)) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["file"]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with contextlib.suppress(ZeroDivisionError), replacing(str(path)) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to("folder/file")
    for text in (b"first", b"second"):
        with replacing(str(link)) as file:
            file.write(text)
        assert link.is_symlink()
        assert (tmp_path / "folder" / "file").read_bytes() == text


def test_files_with_other_names_stay(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("a user's")
    (tmp_path / "file.tmp").symlink_to("other")
    with replacing(str(tmp_path / "file")) as file:
        file.write(b"new")
    assert (tmp_path / "other").read_text() == "a user's"
    assert (tmp_path / "file.tmp").is_symlink()
    assert not (tmp_path / "file").is_symlink()


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    with replacing(str(pipe)) as file:
        file.write(b"through")
    reader.join()
    assert read == [b"through"]
    assert pipe.is_fifo()
