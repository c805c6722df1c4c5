"""Jobs of schedulers: in an allocation of a Slurm that has the two hosts as its nodes; and of Ray
Train, whose workers have the environment variables, and nothing else."""

from prelude import *

from .test_hosts import PLACE
from .two_hosts import ADDRESSES, NAMES, Hosts

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
Run = Callable[..., Ended]


@pytest.fixture(scope="module")
def run(hosts: Hosts, tmp_path_factory: Folders) -> Iterator[Run]:
    """Runs a command on the first host, where both are nodes of Slurm."""
    if shutil.which("slurmctld") is None or shutil.which("slurmd") is None:
        pytest.skip("Slurm is not installed")
    folder = tmp_path_factory.mktemp("slurm")
    config = CONFIG.format(folder=folder, names=NAMES, addresses=ADDRESSES)
    (folder / "slurm.conf").write_text(config)
    # Without this Slurm looks for cgroups, which a namespace does not show.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (folder / "state").mkdir()
    own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    own["SLURM_CONF"] = str(folder / "slurm.conf")

    def run(*words: str) -> Ended:
        return ran(hosts.inside(0, *words), env=own, stdin=subprocess.DEVNULL, timeout=120)

    commands = [(0, ["slurmctld", "-D"])]
    commands += [(node, ["slurmd", "-D", "-N", NAMES[node]]) for node in range(2)]
    with (folder / "daemons.log").open("w") as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        lines = [hosts.inside(host, *words) for host, words in commands]
        daemons = [subprocess.Popen(line, env=own, **streams) for line in lines]
    try:
        deadline = time.monotonic() + 60
        while run("sinfo", "-h", "-o", "%t %D").stdout.strip() != "idle 2":
            assert time.monotonic() < deadline, run("sinfo").stdout
            time.sleep(0.2)
        yield run
    finally:
        for daemon in daemons:
            daemon.kill()
            daemon.wait()


CPU_RANKS = [str(ZERORUN), "--accelerator", "cpu", "--num_gpus", "2"]
ALLOCATED = ["salloc", "-Q", "-N2"]


@each("start", ALLOCATED, ["srun", "-N2", "--ntasks-per-node=1"])
def test_a_launcher_on_each_node_is_one_job(run: Run, start: list[str]) -> None:
    output = passed(run(*start, *CPU_RANKS, *PLACE)).stdout
    places = {f"{rank} 4 {rank // 2} {NAMES[0]} {NAMES[rank // 2]}" for rank in range(4)}
    assert set(output.splitlines()) == places


def test_a_failure_on_another_node_is_the_exit_code(run: Run) -> None:
    script = "test $RANK = 3 && exit 7; exec sleep 1000"
    done = run(*ALLOCATED, *CPU_RANKS, "sh", "-c", script)
    assert done.returncode == 7, done.stderr
    assert "rank 3 of 4 (pid" in done.stderr
    assert NAMES[1] in done.stderr


PYTHON = ROOT / "build/ray/bin/python"
TRAINER = """
import json, os, sys

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(settings):
    import torch
    import zerorun

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    engine, *_ = zerorun.initialize(model, config={
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
    })
    world = zerorun.communicator.world()
    rank, ranks = world.rank, world.world_size
    data = torch.linspace(-1, 1, 64).view(8, 8)[rank * 4 : rank * 4 + 4]
    losses = []
    for _ in range(3):
        loss = engine(data).pow(2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    with open(os.path.join(settings["folder"], f"rank{rank}"), "w") as file:
        json.dump({"ranks": ranks, "losses": losses, "variables": sorted(
            name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if name in os.environ)}, file)


ray.init(num_cpus=4, include_dashboard=False)
TorchTrainer(
    train,
    train_loop_config={"folder": sys.argv[1]},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=sys.argv[1], name="run"),
).fit()
"""


@pytest.mark.skipif(not PYTHON.exists(), reason="Ray is not in build/ray (CONTRIBUTING.md)")
def test_workers_of_a_torch_trainer_are_one_job(tmp_path: Path) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    variables = {"PYTHONPATH": str(ROOT / "build/release/python"), "OMP_NUM_THREADS": "1"}
    passed(ran([PYTHON, script, tmp_path], env=os.environ | variables, timeout=300))
    told = [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in range(2)]
    assert all(one["ranks"] == 2 for one in told)
    assert told[0]["variables"] == ["MASTER_ADDR", "RANK", "WORLD_SIZE"]
    for one in told:
        assert one["losses"][-1] < one["losses"][0]
