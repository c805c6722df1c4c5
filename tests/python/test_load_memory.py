"""Host memory while a model is loaded: what is kept and one module, by bench/load.py; and which
pages of files are given back."""

import mmap

import torch
from prelude import *
from zerorun import host_memory

PROGRAM = ROOT / "bench" / "load.py"
LOADS = ("init/3", "engine/3", "engine/0/fp32", "engine/3/offload")
LOADS += ("shard/0", "shard/3", "train/0", "train/3")
# 64 MiB, half of it one module. A busy machine adds up to 7, a load that keeps what it reads 64.
SIZE = ("--ranks", "2", "--megabytes", "40", "--width", "1024")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: Folders) -> dict[str, list[int]]:
    """Of each load in MiB: the largest sum over the ranks, what is kept, a module, the limit."""
    folder = tmp_path_factory.mktemp("load")
    job = ran([sys.executable, PROGRAM, *LOADS, *SIZE], cwd=folder, timeout=300)
    found = [line.split()[2:] for line in job.stdout.splitlines()[1:]]
    assert len(found) == len(LOADS), job.stdout + job.stderr
    return {load: list(map(int, row)) for load, row in zip(LOADS, found, strict=True)}


@each("load", *LOADS)
def test_a_load_needs_what_is_kept_and_one_module(rows: dict[str, list[int]], load: str) -> None:
    largest_sum, kept, module, limit = rows[load]
    assert kept > module
    assert largest_sum <= limit


PAGE = mmap.PAGESIZE


def resident(tensor: torch.Tensor) -> int:
    """Bytes of the file in which the tensor is that are in this process's memory."""
    smaps = Path("/proc/self/smaps").read_text().split("file-of-numbers")[1]
    return int(smaps.split("Rss:")[1].split()[0]) * 1024


def test_pages_that_others_share_are_left(tmp_path: Path, monkeypatch: Patch) -> None:
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


def test_page_locked_memory_is_left(tmp_path: Path, monkeypatch: Patch) -> None:
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
