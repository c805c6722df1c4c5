"""Two hosts on one machine (network namespaces, each with a name and sshd), and a zerorun job on
them with what it leaves behind."""

import host_namespaces
from prelude import *

ADDRESSES = ("10.77.0.1", "10.77.0.2")
ADDRESSES_6 = ("fd13:77::1", "fd13:77::2")
NAMES = ("zr-host-a", "zr-host-b")
NAMES_6 = ("zr-host6-a", "zr-host6-b")


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


class Network(host_namespaces.Hosts):
    def __init__(self, folder: Path) -> None:
        super().__init__(2)
        self.folder = folder

    def _make(self) -> None:
        super()._make()
        for number, address in enumerate(ADDRESSES_6):
            # Without the second in which the kernel looks for another host of that address.
            self.ip(number, "address", "add", f"{address}/64", "dev", "eth0", "nodad")
            Path("/etc/netns", self.name(number)).mkdir(parents=True)
            self.know(number)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for number in range(2):
            shutil.rmtree(Path("/etc/netns", self.name(number)), ignore_errors=True)

    def know(self, number: int, *names: str) -> None:
        """What one of the hosts finds in its /etc/hosts before everything else."""
        lines = ["127.0.0.1 localhost", *names]
        lines += map(" ".join, zip(ADDRESSES + ADDRESSES_6, NAMES + NAMES_6, strict=True))
        own = Path("/etc/netns", self.name(number))  # `ip netns exec` mounts it over /etc
        (own / "hosts").write_text("".join(f"{line}\n" for line in lines))

    def ip(self, number: int, *words: str) -> None:
        """Runs ip(8) for one of the hosts."""
        run("ip", "-n", self.name(number), *words)

    def inside(self, number: int, *words: str) -> list[str]:
        """The command that runs `words` on one of the hosts, under that host's name."""
        script = f'hostname {NAMES[number]}; exec "$@"'
        return self.command(number, ["unshare", "--uts", "sh", "-c", script, "sh", *words])

    def processes(self, number: int) -> list[int]:
        return [int(pid) for pid in run("ip", "netns", "pids", self.name(number)).split()]

    def sent_bytes(self, number: int) -> int:
        return int(run(*self.inside(number, "cat", "/sys/class/net/eth0/statistics/tx_bytes")))


class Hosts(Network):
    """Such hosts with sshd and keys, and a hostfile."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.key = folder / "key"
        self.hostfile = folder / "hosts"
        self.hostfile.write_text("".join(f"{one} slots=2\n" for one in ADDRESSES))

    def _make(self) -> None:
        super()._make()
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key))
        authorized = self.folder / "authorized_keys"
        shutil.copy(f"{self.key}.pub", authorized)
        Path("/run/sshd").mkdir(exist_ok=True)
        for number, address in enumerate(ADDRESSES):
            config = self.folder / f"sshd{number}"
            config.write_text(
                f"ListenAddress {address}\nListenAddress {ADDRESSES_6[number]}\n"
                f"HostKey {self.key}\nAuthorizedKeysFile {authorized}\n"
                f"PidFile none\nPermitRootLogin yes\nStrictModes no\nUsePAM no\n"
            )
            command = self.inside(number, "/usr/sbin/sshd", "-D", "-f", str(config))
            self.daemons.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        for number, address in enumerate(ADDRESSES):
            probe = f"until : < /dev/tcp/{address}/22; do sleep 0.05; done"
            subprocess.run(self.inside(1 - number, "bash", "-c", probe), timeout=20, check=True)

    def ssh_options(self) -> str:
        known = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
        return f"-i {self.key} {known} -o LogLevel=ERROR"

    def __exit__(self, *_: object) -> None:
        for daemon in self.daemons:
            daemon.kill()
            daemon.wait()
        super().__exit__()


class Job:
    def __init__(
        self,
        hosts: Hosts,
        options: list[str],
        program: list[str],
        start: str = "ssh",
        hostfile: Path | None = None,
    ) -> None:
        self.hosts = hosts
        arguments = [str(ZERORUN), "--accelerator", "cpu"]
        arguments += ["--hostfile", str(hostfile or hosts.hostfile)]
        if start == "ssh":
            arguments += [f"--launcher_args={hosts.ssh_options()}"]
        self.started = time.monotonic()
        command = hosts.inside(0, *arguments, *options, *program)
        self.process = piped(command, stdin=subprocess.DEVNULL)

    def members(self, *hosts: int) -> list[int]:
        """Every process on all hosts, or those given, but their sshd: the job's."""
        found = [pid for host in hosts or (0, 1) for pid in self.hosts.processes(host)]
        return [pid for pid in found if name_of(pid) not in ("sshd", "")]

    def read_lines(self, count: int) -> list[str]:
        assert self.process.stdout is not None
        return [self.process.stdout.readline().rstrip("\n") for _ in range(count)]

    def end(self, code: int = 0, timeout: float = 60) -> tuple[str, str]:
        """Rest of standard output, and standard error, of a job that ends with an exit code as a
        shell gives it, and leaves no process."""
        output, errors = self.process.communicate(timeout=timeout)
        found = self.process.returncode
        assert (found if found >= 0 else 128 - found) == code, errors
        assert self.survivors() == []
        return output, errors

    def survivors(self, patience: float = 10) -> list[str]:
        """What is left once everything had time to go."""
        deadline = time.monotonic() + patience
        while (left := self.members()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [name_of(pid) for pid in left]


def name_of(pid: int) -> str:
    """Empty for a process that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return "" if fields["State"][0] in "ZX" else fields["Name"]
