"""Jobs in an allocation of a Slurm that has the two hosts as its nodes."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import passed, ran

from .job import ZERORUN
from .namespaces import ADDRESSES, NAMES, Hosts
from .test_hosts import PLACE

CONFIG = """
ClusterName=zerorun
SlurmctldHost={names[0]}({addresses[0]})
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerType=sched/builtin
MpiDefault=none
ReturnToService=2
SlurmUser=root
SlurmdUser=root
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
NodeName={names[0]} NodeAddr={addresses[0]} CPUs=4
NodeName={names[1]} NodeAddr={addresses[1]} CPUs=4
PartitionName=main Nodes=ALL Default=YES State=UP
"""


class Slurm:
    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts = hosts
        config = folder / "slurm.conf"
        config.write_text(CONFIG.format(folder=folder, names=NAMES, addresses=ADDRESSES))
        # Without this Slurm looks for cgroups, which a namespace does not show.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        inherited = {name: v for name, v in os.environ.items() if not name.startswith("SLURM")}
        self.environment = inherited | {"SLURM_CONF": str(config)}
        (folder / "state").mkdir()
        daemons = [(0, ["slurmctld", "-D"])]
        daemons += [(node, ["slurmd", "-D", "-N", NAMES[node]]) for node in range(2)]
        self.log = (folder / "daemons.log").open("w")
        self.daemons = [
            subprocess.Popen(
                hosts.inside(host, *words), env=self.environment, stdout=self.log, stderr=self.log
            )
            for host, words in daemons
        ]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = self.hosts.inside(0, *words)
        return ran(command, env=self.environment, stdin=subprocess.DEVNULL, timeout=120)

    def wait_until_idle(self) -> None:
        deadline = time.monotonic() + 60
        while self.run("sinfo", "-h", "-o", "%t %D").stdout.strip() != "idle 2":
            if time.monotonic() > deadline:
                raise RuntimeError(self.run("sinfo").stdout)
            time.sleep(0.2)

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.kill()
        for daemon in self.daemons:
            daemon.wait()
        self.log.close()


@pytest.fixture(scope="module")
def slurm(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if shutil.which("slurmctld") is None or shutil.which("slurmd") is None:
        pytest.skip("Slurm is not installed")
    found = Slurm(hosts, tmp_path_factory.mktemp("slurm"))
    try:
        found.wait_until_idle()
        yield found
    finally:
        found.close()


CPU_RANKS = [str(ZERORUN), "--accelerator", "cpu", "--num_gpus", "2"]
ALLOCATED = ["salloc", "-Q", "-N2"]


@pytest.mark.parametrize("start", [ALLOCATED, ["srun", "-N2", "--ntasks-per-node=1"]])
def test_a_launcher_on_each_node_is_one_job(slurm: Slurm, start: list[str]) -> None:
    output = passed(slurm.run(*start, *CPU_RANKS, *PLACE)).stdout
    places = {f"{rank} 4 {rank // 2} {NAMES[0]} {NAMES[rank // 2]}" for rank in range(4)}
    assert set(output.splitlines()) == places


def test_a_failure_on_another_node_is_the_exit_code(slurm: Slurm) -> None:
    script = "test $RANK = 3 && exit 7; exec sleep 1000"
    done = slurm.run(*ALLOCATED, *CPU_RANKS, "sh", "-c", script)
    assert done.returncode == 7, done.stderr
    assert "rank 3 of 4 (pid" in done.stderr
    assert NAMES[1] in done.stderr
