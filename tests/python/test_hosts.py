"""Training on several hosts: network namespaces, each with an address and a loopback of its own."""

from host_namespaces import Hosts, rank_environment, why_not
from prelude import *

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

DEADLINE = 120
WORLD_SIZE = 4


@pytest.fixture
def start(tmp_path):
    write_small_job(tmp_path)
    program = os.environ.get("ZERORUN_TRAIN") or BUILD / "libexec" / "zerorun" / "train"
    ranks = []

    def run(hosts, ranks_per_host, *options):
        command = [program, "--data", "text", "--model", "model.json", "--micro_batch", "2",
                   "--sample=", *options]  # fmt: skip
        for rank in range(WORLD_SIZE):
            there = hosts.command(rank // ranks_per_host, command)
            own = rank_environment(hosts, rank, WORLD_SIZE, ranks_per_host)
            ranks.append(piped(there, cwd=tmp_path, env=own))
        return ranks[-WORLD_SIZE:]

    yield run
    for rank in ranks:
        rank.kill()
        rank.communicate()


def test_any_layout_of_hosts_trains_the_same_bits(start, tmp_path):
    hpz = {"stage": 3, "zero_hpz_partition_size": 2, "stage3_max_reuse_distance": 0}
    hpz["stage3_param_persistence_threshold"] = 0
    for name, zero in [("plain", {"stage": 1}), ("hpz", hpz)]:
        (tmp_path / f"{name}.json").write_text(json.dumps({"zero_optimization": zero}))
    hashes = {}
    for name, ranks_per_host, config in [
        ("one host", 4, "plain.json"),
        ("two", 2, "plain.json"),
        ("two, hpZ on each", 2, "hpz.json"),
        ("four", 1, "plain.json"),
    ]:
        metrics = tmp_path / f"{name}.jsonl"
        with Hosts(WORLD_SIZE // ranks_per_host) as hosts:
            options = ["--steps", 4, "--metrics", metrics.name, "--config", config]
            ranks = start(hosts, ranks_per_host, *options)
            for rank in ranks:
                _, errors = rank.communicate(timeout=DEADLINE)
                assert rank.returncode == 0, errors
        hashes[name] = json.loads(metrics.read_text().splitlines()[-1])["param_hash"]
    assert len(set(hashes.values())) == 1, hashes


def test_updated_parameters_in_8_bits(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from pathlib import Path\nfrom rank_main import run\nrun('quantized_updates', Path(), [])"
    )
    python = f"{torch_python()['VIRTUAL_ENV']}/bin/python"
    cases = cases_in("quantized_updates")
    for case in cases:
        (tmp_path / case).mkdir()
    path = environment()["PYTHONPATH"] + f":{BUILD / 'python/zerorun/compat/site'}"
    variables = {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "eth0"}
    with Hosts(2) as hosts, ThreadPoolExecutor(WORLD_SIZE) as threads:

        def run(rank):
            own = rank_environment(hosts, rank, WORLD_SIZE, 2) | variables
            command = hosts.command(rank // 2, [python, program])
            return ran(command, cwd=tmp_path, env=own, timeout=DEADLINE)

        for job in threads.map(run, range(WORLD_SIZE)):
            passed(job)
    for rank in range(WORLD_SIZE):
        results = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert results == dict.fromkeys(cases, "passed")


def test_a_rank_that_dies_on_another_host_ends_the_job_by_name(start):
    with Hosts(2) as hosts:
        ranks = start(hosts, 2, "--steps", 100000)
        while not ranks[0].stdout.readline().startswith("step 1/"):
            assert ranks[0].poll() is None, ranks[0].stderr.read()
        ranks[3].send_signal(signal.SIGKILL)
        for rank in ranks[:3]:  # long before comm_timeout
            _, errors = rank.communicate(timeout=DEADLINE)
            assert rank.returncode != 0
            assert "rank 3" in errors
