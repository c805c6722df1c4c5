"""A rank that does not come to a collective: what the others say about it."""

import json
import os
import subprocess
import sys

import pytest

DEADLINE = 120
STUCK = """
import os, threading, time, torch, zerorun

def wait_for_a_lock_that_nobody_gives_back():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

model = torch.nn.Linear(4, 4)
engine, *_ = zerorun.initialize(model=model, config={
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
})
for step in range(3):
    if step == 2 and os.environ["RANK"] == "1":
        wait_for_a_lock_that_nobody_gives_back()
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
"""


@pytest.mark.parametrize("by", ["option", "variable"])
def test_the_report_shows_the_python_stack_of_the_rank_that_is_stuck(zerorun, build, tmp_path, by):
    (tmp_path / "stuck.py").write_text(STUCK)
    variables = {"ZERORUN_COMM_TIMEOUT": "4"} if by == "variable" else {}
    option = ["--comm_timeout", "4"] if by == "option" else []
    done = subprocess.run(
        [zerorun, "--accelerator", "cpu", "--num_gpus", "3", "--log_dir", "logs", *option,
         "stuck.py"],
        cwd=tmp_path,
        env={**os.environ, "VIRTUAL_ENV": sys.prefix, "PYTHONPATH": str(build / "python"),
             **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    logs = "".join(path.read_text() for path in (tmp_path / "logs").glob("rank*.log"))
    assert logs.count("the job stands still") == 1
    assert "wait_for_a_lock_that_nobody_gives_back" in logs
    report = json.loads((tmp_path / "logs" / "stall.json").read_text())
    waiting, stuck, other = report["ranks"]
    assert (waiting["waits_for"], other["waits_for"]) == (1, 1)
    assert "bucket" in waiting["label"]
    assert stuck["waits_for"] is None
    assert any("wait_for_a_lock" in line for line in stuck["python_stack"])
    assert stuck["native_stack"]
