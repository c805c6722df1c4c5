"""Trouble between hosts: wrong interfaces and addresses, slow readers, Ctrl-C at any time."""

import signal
import subprocess
import time
from pathlib import Path

import pytest
from host_namespaces import rank_environment
from ranks import piped, write_small_job

from .job import ROOT, Job
from .namespaces import ADDRESSES, ADDRESSES_6, Hosts, Network

TRAIN = ROOT / "build/release/libexec/zerorun/train"


@pytest.mark.parametrize(
    ("interfaces", "error"),
    [
        (("eth0", "eth9"), "rank 1 cannot exchange data with other hosts: 'eth9'"),
        (("eth9", "eth0"), "rank 0 cannot exchange data with other hosts: 'eth9'"),
        (("lo", "lo"), "'lo' has the address 127.0.0.1, which every host has for itself"),
        (("eth0", "lo"), "rank 1 cannot exchange data with other hosts: 'lo'"),
    ],
    ids=["not there", "not on the first", "loopback", "loopback on one"],
)
def test_a_wrong_interface_is_an_error_on_every_host(
    network: Network, tmp_path: Path, interfaces: tuple[str, str], error: str
) -> None:
    """Of ranks that are started by nothing but their environment."""
    write_small_job(tmp_path)
    program = (
        f"{TRAIN} --data {tmp_path}/text --model nano --steps 2 --sample= --save {tmp_path}/out"
    )
    started, jobs = time.monotonic(), []
    for rank, interface in enumerate(interfaces):
        own = {"GLOO_SOCKET_IFNAME": interface, "CUDA_VISIBLE_DEVICES": ""}
        environment = rank_environment(network, rank, 2, ranks_per_host=1) | own
        command = network.inside(rank, *program.split())
        jobs.append(piped(command, env=environment, stderr=subprocess.STDOUT))
    output = [job.communicate(timeout=60)[0] for job in jobs]
    assert time.monotonic() - started < 20
    assert all(job.returncode != 0 for job in jobs)
    for text in output:
        assert error in text


LINES = ["sh", "-c", "head -c 700000 /dev/zero | tr '\\0' x | fold -w 99; echo"]


def test_after_ctrl_c_output_that_nobody_reads_does_not_hold_the_job(hosts: Hosts) -> None:
    job = Job(hosts, [], LINES)
    time.sleep(5)
    job.process.send_signal(signal.SIGINT)
    assert not job.survivors()
    _, errors = job.end(128 + signal.SIGINT)
    assert "SIGINT: output that nobody has read is lost" in errors


@pytest.mark.parametrize("tenths", range(1, 11))
def test_ctrl_c_while_the_hosts_begin_ends_the_job(hosts: Hosts, tenths: int) -> None:
    job = Job(hosts, [], ["sleep", "40"])
    time.sleep(tenths / 10)
    job.process.send_signal(signal.SIGINT)
    job.end(128 + signal.SIGINT, timeout=20)


def test_pdsh_reaches_addresses_of_ipv6_and_users(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
