"""Memory of files that is given back: which pages are."""

import mmap
from pathlib import Path

import pytest
import torch
from zerorun import host_memory

PAGE = mmap.PAGESIZE


def resident(tensor: torch.Tensor) -> int:
    """Bytes of the file in which the tensor is that are in this process's memory."""
    smaps = Path("/proc/self/smaps").read_text().split("file-of-numbers")[1]
    return int(smaps.split("Rss:")[1].split()[0]) * 1024


def test_pages_that_others_share_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread writes beside the tensor when its pages were found to be a file's."""
    path = tmp_path / "file-of-numbers"
    path.write_bytes(bytes(4 * PAGE))
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=3)
    numbers = torch.frombuffer(memory, dtype=torch.float32)
    ask = host_memory._are_of_a_file

    def write_then(begin: int, end: int) -> bool:
        found = ask(begin, end)
        numbers[0] = numbers[-1] = 1.0
        return found

    monkeypatch.setattr(host_memory, "_are_of_a_file", write_then)
    assert float(numbers.sum()) == 0.0
    assert resident(numbers) == 4 * PAGE
    host_memory.forget_pages(numbers[1:-1])
    assert resident(numbers) == 2 * PAGE
    assert float(numbers[0]) == float(numbers[-1]) == 1.0


def test_page_locked_memory_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file-of-numbers"
    path.write_bytes(bytes(4 * PAGE))
    numbers = torch.from_file(str(path), shared=False, size=PAGE, dtype=torch.float32)
    assert float(numbers.sum()) == 0.0
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "is_pinned", lambda _tensor: True)
        host_memory.forget_pages(numbers)
    assert resident(numbers) == 4 * PAGE
    host_memory.forget_pages(numbers)
    assert resident(numbers) == 0
