"""A rank that does not come to a collective: what the others say about it."""

import json

from ranks import launch, passed

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


def test_the_report_shows_the_python_stack_of_the_rank_that_is_stuck(build, torch_python, tmp_path):
    (tmp_path / "stuck.py").write_text(STUCK)
    options = ["--log_dir", "logs", "--comm_timeout", "4"]
    done = launch(build, 3, *options, "stuck.py", cwd=tmp_path, **torch_python)
    assert done.returncode == 1
    logs = "".join(path.read_text() for path in (tmp_path / "logs").glob("rank*.log"))
    assert logs.count("the job stands still") == 1
    assert "wait_for_a_lock_that_nobody_gives_back" in logs
    report = json.loads((tmp_path / "logs" / "stall.json").read_text())
    waiting, stuck, _ = report["ranks"]
    assert [rank["waits_for"] for rank in report["ranks"]] == [1, None, 1]
    assert "bucket" in waiting["label"]
    assert any("wait_for_a_lock" in line for line in stuck["python_stack"])
    assert f"gdb -p {stuck['pid']}" in logs


HANDLERS = """
import ctypes, threading
from pathlib import Path
from zerorun import _C
from zerorun.communicator import answer_stack_requests

class Stack(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("nbytes", ctypes.c_size_t)]

def has_handler():
    status = Path("/proc/self/status").read_text()
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(caught >> (_C.stack_requests()[0] - 1) & 1)

def has_stack():
    stack = Stack()
    assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack)) == 0
    return stack.at is not None

thread = threading.Thread(target=answer_stack_requests)
thread.start()
thread.join()
print("after a thread:", has_handler())
answer_stack_requests()
print("after the main thread:", has_handler(), has_stack())
"""


def test_the_handler_has_a_stack_of_its_own(build, tmp_path):
    """A rank may be in a function that uses a block of the heap as its stack."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    done = passed(launch(build, 1, "handlers.py", cwd=tmp_path))
    assert done.stdout.splitlines() == ["after a thread: False", "after the main thread: True True"]
