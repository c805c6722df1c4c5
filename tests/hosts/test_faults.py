"""Whatever is killed, stopped or fails: the job ends on both hosts, and the table says how.

Writes docs/faults.md when ZERORUN_WRITE_FAULTS is set.
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from .job import ROOT, Job, name_of
from .namespaces import Hosts

PROGRAM = """
import os, signal, sys, time
rank, what = int(os.environ["RANK"]), sys.argv[1]
def give_up(after): time.sleep(1000 if rank == 3 else after); sys.exit("timed out: rank 3")
def fail(how): time.sleep(1 if rank == 3 else 1000); how()
print("ready", flush=True)
{ "exception": lambda: fail(lambda: [][0]),
  "exit 3": lambda: fail(lambda: sys.exit(3)),
  "hang": lambda: give_up(2),
  "waiting": lambda: give_up(4),
  "run": lambda: time.sleep(1000),
  "finish": lambda: time.sleep(3) }[what]()
"""
HEAD = """# What ends a job, and how

`ZERORUN_WRITE_FAULTS=1 ./dev test --only hosts` writes this page. The job runs on two hosts
(network namespaces) with two ranks each and was started by ssh. The affected process is on the
second host, except *launcher* and *ssh*, which run on the first. *Time to end* is the time from
the fault to the end of the last process on both hosts. It includes delays of the test program: in
*hang* and *rank, STOP* the other ranks wait 2 and 4 s for rank 3 before they give up, in
*exception* and *exit 3* rank 3 fails after 1 s, and in *ssh, STOP* the program ends normally
after 3 s. *Segments left* counts segments of shared memory.

| affected process | event | time to end | exit code | processes left | segments left |
|---|---|---|---|---|---|
"""
LINES: list[str] = []


@dataclass
class Fault:
    victim: str
    event: str
    program: str
    signal: int = 0
    code: int = 1
    seconds: float = 6
    said: str = ""


KILL, TERM, STOP = signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP
FAULTS = [
    Fault("rank", "kill -9", "run", KILL, 137, said="rank 3 of 4"),
    Fault("rank", "TERM", "run", TERM, 143, said="rank 3 of 4"),
    Fault("rank", "STOP", "waiting", STOP, 1, 10, "was stopped"),
    Fault("rank", "exception", "exception", 0, 1, said="IndexError"),
    Fault("rank", "exit 3", "exit 3", 0, 3, said="failed with exit code 3"),
    Fault("rank", "hang", "hang", 0, 1, 8, "timed out"),
    Fault("launcher", "kill -9", "run", KILL, 137),
    Fault("launcher", "TERM", "run", TERM, 143, said="SIGTERM: ending"),
    Fault("node launcher", "kill -9", "run", KILL, 1, said="was lost"),
    Fault("node launcher", "TERM", "run", TERM, 143, said="ending the ranks of all hosts"),
    Fault("node launcher", "STOP", "run", STOP, 1, 8, "nothing was heard"),
    Fault("ssh", "kill -9", "run", KILL, 1, said="was lost"),
    Fault("ssh", "TERM", "run", TERM, 1, said="was lost"),
    Fault("ssh", "STOP", "finish", STOP, 0, 12),
]


def victim_of(fault: Fault, job: Job) -> int:
    if fault.victim == "rank":
        variables = {pid: Path(f"/proc/{pid}/environ").read_bytes() for pid in job.members(1)}
        return next(pid for pid, found in variables.items() if b"\0RANK=3\0" in b"\0" + found)
    if fault.victim == "ssh":
        return next(pid for pid in job.members(0) if name_of(pid) == "ssh")
    if fault.victim == "launcher":
        return job.process.pid
    # The guardian, of which users see one, or the supervisor, which does the work.
    name = "zr-supervisor" if fault.signal == STOP else "zerorun"
    return next(pid for pid in job.members(1) if name_of(pid) == name)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.victim}-{fault.event}")
def test_fault(fault: Fault, hosts: Hosts) -> None:
    script = hosts.folder / "fault.py"
    script.write_text(PROGRAM)
    before = set(os.listdir("/dev/shm"))  # noqa: S108  (where segments are)
    job = Job(hosts, [], [str(script), fault.program])
    assert job.read_lines(4) == ["ready"] * 4
    began = time.monotonic()
    if fault.signal:
        os.kill(victim_of(fault, job), fault.signal)
    _, errors = job.end(fault.code)
    seconds = time.monotonic() - began
    assert fault.said in errors
    assert not set(os.listdir("/dev/shm")) - before  # noqa: S108
    assert seconds < fault.seconds
    LINES.append(f"| {fault.victim} | {fault.event} | {seconds:.1f} s | {fault.code} | 0 | 0 |")


def test_write_the_table() -> None:
    if not os.environ.get("ZERORUN_WRITE_FAULTS"):
        pytest.skip("ZERORUN_WRITE_FAULTS is not set")
    assert len(LINES) == len(FAULTS)
    (ROOT / "docs/faults.md").write_text(HEAD + "\n".join(LINES) + "\n")
