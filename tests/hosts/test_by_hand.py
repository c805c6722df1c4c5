"""Launchers that somebody starts on each host, and what they say when that goes wrong."""

import secrets

from prelude import *

from .two_hosts import ADDRESSES, ADDRESSES_6, NAMES, Network

PORT = "29517"
PATIENCE = 10.0  # in seconds: nobody is left alone for longer
TRAIN = ["train", "--model", "nano", "--seq_len", "32", "--steps", "2", "--sample=", "--save="]


class Launcher:
    """One that runs on a host, and whose messages are in a file."""

    def __init__(
        self,
        network: Network,
        host: int,
        *options: str,
        program: Sequence[str] = ("true",),
        before: Sequence[str] = (),
    ) -> None:
        words = [*before, str(ZERORUN), "--accelerator", "cpu", "--nproc_per_node", "1"]
        words += ["--master_port", PORT, *options, *program]
        self.started, self.file = time.time(), network.folder / secrets.token_hex(8)
        streams = dict.fromkeys(("stdin", "stdout"), subprocess.DEVNULL)
        own = {**os.environ, "ZERORUN_JOB_SECRET": "only we know"}
        with self.file.open("w") as errors:
            command = network.inside(host, *words)
            self.process = subprocess.Popen(command, env=own, stderr=errors, **streams)

    @property
    def text(self) -> str:
        return self.file.read_text()

    def says(self, text: str, within: float = PATIENCE) -> None:
        """Waits for a message that has the text."""
        while text not in self.text:
            assert time.time() - self.started < within, f"no {text!r} in: {self.text}"
            time.sleep(0.02)

    def end(self, within: float = PATIENCE) -> int:
        """Its exit code; it has so many seconds from its start."""
        return self.process.wait(timeout=max(0.1, within - (time.time() - self.started)))


def by_hand(rank: int, master: str = ADDRESSES[0], hosts: int = 2) -> list[str]:
    return ["--nnodes", str(hosts), "--node_rank", str(rank), "--master_addr", master]


@contextlib.contextmanager
def dropped(network: Network, host: int, ports: str) -> Iterator[None]:
    """A firewall of the host that drops what comes to its ports, without an answer."""
    rule = ("pref", "50", "iif", "eth0", "ipproto", "tcp", "dport", ports, "blackhole")
    network.ip(host, "rule", "add", "pref", "100", "lookup", "local")
    network.ip(host, "rule", "del", "pref", "0")
    network.ip(host, "rule", "add", *rule)
    yield
    network.ip(host, "rule", "del", *rule)


def train(network: Network, folder: Path, master: str, *options: str, before: Any = ()) -> None:
    """Ranks on both hosts exchange data. The second launcher is run by `before`."""
    text = folder / "text"
    text.write_text("what is to be learned, again and again\n" * 100)
    program = [*TRAIN, "--data", str(text)]
    first = Launcher(network, 0, *by_hand(0, master), *options, program=program)
    second = Launcher(network, 1, *by_hand(1, master), *options, program=program, before=before)
    assert [job.end(within=60) for job in (first, second)] == [0, 0], second.text


@each("first", 0, 1, ids=["the right one first", "the wrong one first"])
def test_two_launchers_with_node_rank_0(network: Network, first: int) -> None:
    jobs = {}
    for host in (first, 1 - first):
        jobs[host] = Launcher(network, host, *by_hand(0))
        time.sleep(1)
    assert jobs[1].end() == 2
    error = f"two launchers were started with --node_rank 0: on {NAMES[0]} and on {NAMES[1]}"
    assert error in jobs[1].text
    assert f"Start the one on {NAMES[1]} again with --node_rank 1" in jobs[1].text
    jobs[0].says(error)
    again = Launcher(network, 1, *by_hand(1))
    assert again.end() == 0, again.text
    assert jobs[0].end(within=30) == 0, jobs[0].text


def test_the_bridge_of_docker_is_no_address_to_meet_at(network: Network) -> None:
    # With a lower number than eth0 it is found first.
    network.ip(0, "link", "add", "docker0", "index", "3", "type", "veth", "peer", "name", "veth0")
    for name in ("docker0", "veth0"):
        network.ip(0, "link", "set", name, "up")
    network.ip(0, "address", "add", "172.17.0.1/16", "dev", "docker0")
    job = Launcher(network, 0, *by_hand(0, master="127.0.0.1"))
    assert job.end() == 2
    assert f"--nnodes 2 --node_rank 0 --master_addr {ADDRESSES[0]} true" in job.text
    assert "172.17.0.1 (docker0). Type here: " in job.text


def test_a_master_address_that_nobody_answers(network: Network) -> None:
    with dropped(network, 0, PORT):
        first = Launcher(network, 0, *by_hand(0))
        dead = Launcher(network, 1, *by_hand(1, master="10.77.0.9"))
        behind = Launcher(network, 1, *by_hand(1))
        unknown = Launcher(network, 1, *by_hand(1, master="no-such-host.invalid"))
        not_own = Launcher(network, 1, *by_hand(0, master="10.77.0.9"), "--master_port", "29518")
        for job in (dead, behind):
            job.says("nothing answers: the host is down, has another address, or a firewall")
        unknown.says("or add the name to DNS or /etc/hosts")
        first.says(
            f"type: zerorun --accelerator cpu --nproc_per_node 1 --master_port {PORT} "
            f"--nnodes 2 --master_addr {ADDRESSES[0]} --node_rank 1 true"
        )
        not_own.says("which is no address of this host")
        assert [job.end(within=75) for job in (dead, behind)] == [1, 1]
        for job in (dead, behind):
            assert " attempts, the last one: " in job.text
            assert job.file.stat().st_mtime - job.started > 55
        not_own.says("no other host has joined for 60 s: they are to meet at", within=75)
        for job in (unknown, not_own):  # the name may become known, and others may find the way
            with pytest.raises(subprocess.TimeoutExpired):
                job.end(within=70)
            job.process.send_signal(signal.SIGINT)
            assert job.end(within=80) == 130
        assert not_own.text.count("Type here: zerorun") == 1
        assert f"--master_addr {ADDRESSES[1]} true" in not_own.text
    late = Launcher(network, 1, *by_hand(1))
    assert [late.end(), first.end(within=100)] == [0, 0]


def test_a_first_launcher_that_is_started_again_is_joined(network: Network) -> None:
    jobs = [Launcher(network, rank, *by_hand(rank, hosts=3)) for rank in (0, 1)]
    jobs[0].says("there: zr-host-a (node 0), zr-host-b (node 1); missing: (node 2)")
    jobs[0].process.kill()
    jobs[0].end(within=30)
    jobs[1].says("lost the connection to the launcher of the first host")
    jobs += [Launcher(network, host, *by_hand(rank, hosts=3)) for host, rank in ((0, 0), (1, 2))]
    assert [job.end(within=30) for job in jobs[1:]] == [0, 0, 0]


def test_the_name_of_the_first_host_is_its_loopback(network: Network, tmp_path: Path) -> None:
    network.know(0, f"127.0.1.1 {NAMES[0]}")  # as Debian's installer writes it
    train(network, tmp_path, NAMES[0])


@each("master", ADDRESSES_6[0], NAMES[0], ids=["address", "name"])
def test_a_link_with_ipv6_only(network: Network, master: str, tmp_path: Path) -> None:
    network.know(0, f"127.0.1.1 {NAMES[0]}")
    network.know(1, f"{ADDRESSES_6[0]} {NAMES[0]}")
    for host, address in enumerate(ADDRESSES):
        network.ip(host, "address", "del", f"{address}/24", "dev", "eth0")
    train(network, tmp_path, master)


def test_a_firewall_that_lets_only_the_port_of_the_launchers_pass(network: Network) -> None:
    with dropped(network, 0, "30000-65534"):
        jobs = [Launcher(network, rank, *by_hand(rank)) for rank in (0, 1)]
        assert [job.end() for job in jobs] == [2, 2]
    for job in jobs:
        assert f"this host does not reach rank 0 at {ADDRESSES[0]} port" in job.text
        assert "a firewall between the hosts has to let all TCP ports pass" in job.text


def test_a_network_without_a_route(network: Network, tmp_path: Path) -> None:
    network.ip(0, "address", "add", "10.99.0.1/24", "dev", "eth0")
    network.ip(1, "route", "add", "10.98.0.0/24", "dev", "eth0")  # where nobody is
    job = Launcher(network, 1, *by_hand(1, master="10.99.0.1"))
    assert job.end() == 1
    assert "this host has no route there; its own addresses are 10.77.0.2 (eth0)" in job.text
    # A name with addresses in both networks is reached by the one that works.
    for name in ("10.99.0.1 both", "10.98.0.1 both"):
        network.know(0, f"{ADDRESSES[0]} both")
        network.know(1, name, f"{ADDRESSES[0]} both")
        train(network, tmp_path, "both")


def test_a_host_without_room_under_dev_shm(network: Network, tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"'
    full = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    # The memory that ranks share does not come from there.
    train(network, tmp_path, ADDRESSES[0], "--nproc_per_node", "2", before=full)
