"""Unedited scripts train as under DeepSpeed: the same losses, from the same seed.

make_deepspeed_golden.py has written what DeepSpeed itself computes.
"""

import json
import os
import sys
from pathlib import Path

import pytest
from curves import DATA, STEPS, TRAINER_RUNS, accelerate_losses, trainer_arguments, trainer_losses
from ranks import environment, launch, ran

pytest.importorskip("accelerate")
pytest.importorskip("peft")


@pytest.fixture(scope="module")
def expected() -> dict[str, list[float]]:
    return json.loads(DATA.read_text())["losses"]


def assert_follows(losses: list[float], golden: list[float], tolerance: float) -> None:
    assert len(losses) == len(golden)
    worst = max(abs(a - b) / b for a, b in zip(losses, golden, strict=True))
    assert worst <= tolerance, f"relative difference {worst}: {losses} instead of {golden}"


@pytest.mark.parametrize("key", TRAINER_RUNS)
def test_trainer(
    build: Path, root: Path, tmp_path: Path, expected: dict[str, list[float]], key: str
) -> None:
    scripts = root / "examples" / "python"
    arguments = trainer_arguments(key, scripts, tmp_path / "out", tmp_path)
    job = launch(build, 2, scripts / "trainer.py", *arguments, cwd=tmp_path)
    assert job.returncode == 0, job.stdout + job.stderr
    losses = trainer_losses(tmp_path / "out")
    assert len(losses) == STEPS
    bf16 = TRAINER_RUNS[key][1]
    assert_follows(losses, expected[f"trainer-{key}"], 1e-2 if bf16 else 1e-4)


def test_accelerate_and_lora(
    build: Path, root: Path, tmp_path: Path, expected: dict[str, list[float]]
) -> None:
    """Under accelerate's own launcher, which is torchrun's, with zero.Init and stage 3."""
    scripts = root / "examples" / "python"
    command = [sys.executable, "-m", "zerorun.compat", "-m", "accelerate.commands.accelerate_cli"]
    command += ["launch", "--config_file", str(scripts / "accelerate_zero3.yaml")]
    command += ["--main_process_port", "0", str(scripts / "accelerate_lora.py"), "out"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    runs = []
    for _ in range(2):  # the second run starts from the first one's adapter
        job = ran(
            [*command, "--text", str(root / "LICENSE")],
            cwd=tmp_path,
            env=environment(build, PATH=path),
            timeout=200,
        )
        assert job.returncode == 0, job.stdout + job.stderr
        runs.append(accelerate_losses(job.stdout))
    assert_follows(runs[0], expected["accelerate-lora"], 1e-4)
    assert runs[1][0] < runs[0][0] - 0.1
    assert (tmp_path / "out" / "adapter.bin").stat().st_size > 1000
