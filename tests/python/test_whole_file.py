"""zerorun.whole_file: the one writer of whole files of the Python package."""

import contextlib
import os
import threading
from pathlib import Path

from zerorun.whole_file import replacing


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
