"""Runs of train that are killed at random moments of their saves and loads, and prunes that are.
ZERORUN_KILLS=200 says how often; without it nothing is run, since it takes minutes."""

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest
from ranks import output_of, piped, write_small_job

KILLS = int(os.environ.get("ZERORUN_KILLS", "0"))


def latest_of(out: Path) -> str:
    return (out / "latest").read_text().strip() if (out / "latest").exists() else ""


def start_and_kill(command: list[object], wait_s: float, out: Path | None = None) -> bool:
    """Kills all processes of the job at once, `wait_s` after its start or after it has saved to
    `out` for the first time. False if it was over before, as a prune may be."""
    job = piped(command, start_new_session=True)
    before, deadline = out and latest_of(out), time.monotonic() + 120
    while out and latest_of(out) == before and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(wait_s)
    with contextlib.suppress(ProcessLookupError):  # it has failed, and says why
        os.killpg(job.pid, signal.SIGKILL)
    _, errors = job.communicate(timeout=60)  # until the last of its processes has ended
    assert out is None or latest_of(out) != before, errors[-2000:]
    return job.returncode == -signal.SIGKILL


@pytest.mark.skipif(KILLS == 0, reason="ZERORUN_KILLS=200 runs it")
@pytest.mark.parametrize("beside", [False, True], ids=["blocking", "async"])
def test_a_killed_run_leaves_checkpoints_that_load(
    zerorun: Path, tmp_path: Path, beside: bool
) -> None:
    out = tmp_path / "out"
    write_small_job(tmp_path)
    train = [zerorun, "--num_gpus", 2, "train", "--data", tmp_path / "text", "--micro_batch", 1]
    train += ["--sample", "", "--steps", 10**6, "--save", out, "--save_every", 1, "--keep_last", 3]
    train += ["--save_async"] if beside else []
    moments = random.Random(0)
    reached = killed_prunes = 0
    for kill in range(KILLS):
        start = ["--resume", out] if kill else ["--model", tmp_path / "model.json"]
        start_and_kill([*train, *start], moments.uniform(0, 0.3), out)
        prune = [zerorun, "ckpt", "prune", out, "--keep_last", 1]
        killed_prunes += start_and_kill(prune, moments.uniform(0, 0.03))
        if kill % 4 == 0:  # while it starts and loads
            start_and_kill([*train, "--resume", out], moments.uniform(0, 1))
        output_of(*prune)
        output_of(zerorun, "ckpt", "verify", out)
        step = int(latest_of(out).removeprefix("step"))
        assert step > reached, f"kill {kill}: step {step} after {reached}"  # and so it was loaded
        reached = step
    assert killed_prunes > 0
