"""Whatever is killed, stopped, wrong or fails: the job ends on both hosts, and the table says how.

Writes docs/faults.md when ZERORUN_WRITE_FAULTS is set.
"""

from dataclasses import dataclass

from host_namespaces import rank_environment
from prelude import *

from .two_hosts import ADDRESSES, ADDRESSES_6, Hosts, Job, Network, name_of

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


@each("fault", *FAULTS, ids=lambda fault: f"{fault.victim}-{fault.event}")
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


@pytest.mark.skipif("ZERORUN_WRITE_FAULTS" not in os.environ, reason="no ZERORUN_WRITE_FAULTS")
def test_write_the_table() -> None:
    assert len(LINES) == len(FAULTS)
    (ROOT / "docs/faults.md").write_text(HEAD + "\n".join(LINES) + "\n")


# --- trouble between hosts: interfaces, addresses, slow readers, Ctrl-C at any time ---

TRAIN = ROOT / "build/release/libexec/zerorun/train"


@each(
    "interfaces error",
    (("eth0", "eth9"), "rank 1 cannot exchange data with other hosts: 'eth9'"),
    (("eth9", "eth0"), "rank 0 cannot exchange data with other hosts: 'eth9'"),
    (("lo", "lo"), "'lo' has the address 127.0.0.1, which every host has for itself"),
    (("eth0", "lo"), "rank 1 cannot exchange data with other hosts: 'lo'"),
    ids=["not there", "not on the first", "loopback", "loopback on one"],
)
def test_a_wrong_interface_is_an_error_on_every_host(
    network: Network, tmp_path: Path, interfaces: tuple[str, str], error: str
) -> None:
    """Of ranks that are started by nothing but their environment."""
    write_small_job(tmp_path)
    options = f"--data {tmp_path}/text --model nano --steps 2 --sample= --save {tmp_path}/out"
    started, jobs = time.monotonic(), []
    for rank, interface in enumerate(interfaces):
        own = {"GLOO_SOCKET_IFNAME": interface, "CUDA_VISIBLE_DEVICES": ""}
        environment = rank_environment(network, rank, 2, ranks_per_host=1) | own
        command = network.inside(rank, str(TRAIN), *options.split())
        jobs.append(piped(command, env=environment, stderr=subprocess.STDOUT))
    for job in jobs:
        assert error in job.communicate(timeout=60)[0]
        assert job.returncode != 0
    assert time.monotonic() - started < 20


FLOOD = ["sh", "-c", "head -c 700000 /dev/zero | tr '\\0' x | fold -w 99; echo"]


def test_after_ctrl_c_output_that_nobody_reads_does_not_hold_the_job(hosts: Hosts) -> None:
    job = Job(hosts, [], FLOOD)
    time.sleep(5)
    job.process.send_signal(signal.SIGINT)
    assert not job.survivors()
    _, errors = job.end(128 + signal.SIGINT)
    assert "SIGINT: output that nobody has read is lost" in errors


@each("tenths", *range(1, 11))
def test_ctrl_c_while_the_hosts_begin_ends_the_job(hosts: Hosts, tenths: int) -> None:
    job = Job(hosts, [], ["sleep", "40"])
    time.sleep(tenths / 10)
    job.process.send_signal(signal.SIGINT)
    job.end(128 + signal.SIGINT, timeout=20)


def test_pdsh_reaches_ipv6_and_users(hosts: Hosts, monkeypatch: Patch, tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text(f"{ADDRESSES_6[0]}\nroot@[{ADDRESSES_6[1]}]:1\n")
    monkeypatch.setenv("PDSH_SSH_ARGS", f"{hosts.ssh_options()} %h")
    program = ["sh", "-c", "echo $RANK $MASTER_ADDR"]
    options = ["--launcher", "pdsh", "--num_gpus", "1"]
    output, _ = Job(hosts, options, program, start="pdsh", hostfile=hostfile).end()
    assert set(output.splitlines()) == {f"{rank} {ADDRESSES_6[0]}" for rank in range(2)}


def test_ssh_logs_in_as_the_user_of_the_hostfile(hosts: Hosts, tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    for user, status in (("root", 0), ("nobody-here", 1)):
        hostfile.write_text(f"{ADDRESSES[0]}:1\n{user}@{ADDRESSES[1]}:1\n")
        _, errors = Job(hosts, [], ["true"], hostfile=hostfile).end(status)
    assert "nobody-here@" in errors


def test_a_lost_host_of_a_fixed_number_is_waited_for(hosts: Hosts) -> None:
    script = "test $TORCHELASTIC_RESTART_COUNT = 1 && exec echo $RANK again; echo ready; sleep 1000"
    job = Job(hosts, ["--max_restarts", "1"], ["sh", "-c", script])
    assert job.read_lines(4) == ["ready"] * 4
    hosts.cut(1)
    time.sleep(5)
    hosts.mend(1)
    output, errors = job.end(timeout=90)
    assert set(output.splitlines()) == {f"{rank} again" for rank in range(4)}
    assert f"restart 1 of 1 on 2 hosts: host {ADDRESSES[1]} (node 1) was lost" in errors
