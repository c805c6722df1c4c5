"""The end of a program that has an engine."""

import signal
import sys
from pathlib import Path

import pytest
from ranks import environment, ran

PROGRAM = """
import sys
import torch, zerorun

class Held:
    '''In a cycle, as trainers and their callbacks are.'''

    def __init__(self):
        self.own = self
        self.file = open(sys.argv[1], "w")
        self.file.write("what it has written")

    def __del__(self):
        print("taken apart")

held = Held()
zerorun.shard(torch.nn.Linear(2, 2), stage=1)
if sys.argv[2] == "interrupted":
    raise KeyboardInterrupt
"""

WITHOUT_ROOM = """
import resource, sys
import torch, zerorun

model = torch.nn.Linear(400, 400)
optimizer = torch.optim.AdamW(model.parameters())
engine = zerorun.initialize(model, optimizer, config={"train_micro_batch_size_per_gpu": 1})[0]
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
engine.save_checkpoint(sys.argv[1], "new", blocking=False)
print("the program's end")
"""


@pytest.mark.parametrize("how", ["interrupted", "ends"])
def test_only_a_program_that_ends_is_taken_apart_but_all_files_are_written(
    build: Path, tmp_path: Path, how: str
) -> None:
    """Which takes PyTorch's modules a second of a core."""
    script, written = tmp_path / "program.py", tmp_path / "written.txt"
    script.write_text(PROGRAM)
    result = ran([sys.executable, script, written, how], env=environment(build))
    assert written.read_text() == "what it has written", result.stderr
    assert ("taken apart" in result.stdout) == (how == "ends")
    codes = {-signal.SIGINT, 128 + signal.SIGINT} if how == "interrupted" else {0}
    assert result.returncode in codes, result.stderr
    assert ("KeyboardInterrupt" in result.stderr) == (how == "interrupted")


@pytest.mark.parametrize(
    ("last", "told"),
    [("", "a checkpoint could not be saved: "), ("engine.destroy()", "in destroy")],
)
def test_a_save_that_fails_after_the_program_is_an_error(
    build: Path, tmp_path: Path, last: str, told: str
) -> None:
    """Python would end with 0, and the next job would miss the checkpoint."""
    program = [sys.executable, "-c", WITHOUT_ROOM + last, str(tmp_path / "run")]
    result = ran(program, env=environment(build))
    assert result.returncode == 1, result.stderr
    assert result.stdout == "the program's end\n"
    assert told in result.stderr
    assert "File too large" in result.stderr
    assert not (tmp_path / "run" / "latest").exists()
