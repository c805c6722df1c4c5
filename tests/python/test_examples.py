"""The scripts in examples/python for plain PyTorch, started by the commands of their headings, on
two CPU ranks."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ranks import shell

LOOP = "zerorun --num_gpus 2 loop.py --stage 3"
DDP = [
    "zerorun --nproc_per_node 2 ddp.py",
    "zerorun --nproc_per_node 2 --use_env ddp.py",
    "zerorun --nproc_per_node 2 ddp.py --sharded",
]
COMMANDS = [LOOP, *DDP]


@pytest.fixture
def folder(root: Path, tmp_path: Path) -> Path:
    return shutil.copytree(root / "examples" / "python", tmp_path / "scripts")


def ok(job: subprocess.CompletedProcess[str]) -> str:
    assert job.returncode == 0, job.stdout + job.stderr
    return job.stdout


def test_the_plain_loop_is_the_same_with_and_without_shards(
    build: Path, torch_python: dict[str, str], folder: Path
) -> None:
    sharded = ok(shell(build, LOOP, folder))  # a Python of its own
    whole = ok(shell(build, LOOP.replace("3", "0"), folder, **torch_python))
    assert sharded == whole
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", whole)]
    assert losses[-1] < 0.6 * losses[0]


def test_a_ddp_script_with_and_without_local_rank_and_sharded(
    build: Path, torch_python: dict[str, str], folder: Path
) -> None:
    outputs = [ok(shell(build, command, folder, **torch_python)) for command in DDP]
    assert outputs[0] == outputs[1] == outputs[2]
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", outputs[0])]
    assert len(losses) == 3
    assert losses[-1] < 0.3 * losses[0]
