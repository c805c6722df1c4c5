"""Two hosts on one machine: network namespaces with a veth pair, each with a name and sshd."""

import os
import shutil
import subprocess
from pathlib import Path

ADDRESSES = ("10.213.77.1", "10.213.77.2")
ADDRESSES_6 = ("fd13:77::1", "fd13:77::2")
NAMES = ("zr-host-a", "zr-host-b")
NAMES_6 = ("zr-host6-a", "zr-host6-b")


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


class Network:
    """The namespaces and their link; `close` removes both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.namespaces = [f"zr{os.getpid()}{id(self) % 997}{letter}" for letter in "ab"]
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def name(self, number: int, *names: str) -> None:
        """What one of the hosts finds in its /etc/hosts before everything else."""
        lines = ["127.0.0.1 localhost", *names]
        lines += map(" ".join, zip(ADDRESSES + ADDRESSES_6, NAMES + NAMES_6, strict=True))
        own = Path("/etc/netns", self.namespaces[number])  # `ip netns exec` mounts it over /etc
        (own / "hosts").write_text("".join(f"{line}\n" for line in lines))

    def ip(self, number: int, *words: str) -> None:
        """Runs ip(8) for one of the hosts."""
        run("ip", "-n", self.namespaces[number], *words)

    def address(self, number: int) -> str:
        return ADDRESSES[number]

    def _connect(self) -> None:
        for number, namespace in enumerate(self.namespaces):
            Path("/etc/netns", namespace).mkdir(parents=True)
            self.name(number)
            run("ip", "netns", "add", namespace)
            run("ip", "-n", namespace, "link", "set", "lo", "up")
        a, b = self.namespaces
        pair = ("type", "veth", "peer", "name", "eth0", "netns", b)
        run("ip", "-n", a, "link", "add", "eth0", "index", "9", *pair)
        for number, namespace in enumerate(self.namespaces):
            run("ip", "-n", namespace, "address", "add", f"{ADDRESSES[number]}/24", "dev", "eth0")
            run("ip", "-n", namespace, "link", "set", "eth0", "up")
            self._add_address_6(number)

    def inside(self, number: int, *words: str) -> list[str]:
        """The command that runs `words` on one of the hosts, under that host's name."""
        script = f'hostname {NAMES[number]}; exec "$@"'
        shell = ["unshare", "--uts", "sh", "-c", script, "sh", *words]
        return ["ip", "netns", "exec", self.namespaces[number], *shell]

    def processes(self, number: int) -> list[int]:
        """Those that run on one of the hosts."""
        return [int(pid) for pid in run("ip", "netns", "pids", self.namespaces[number]).split()]

    def cut(self) -> None:
        """The link between the hosts goes down, without a word to either."""
        run("ip", "-n", self.namespaces[1], "link", "set", "eth0", "down")

    def mend(self) -> None:
        run("ip", "-n", self.namespaces[1], "link", "set", "eth0", "up")
        self._add_address_6(1)  # it went with the link

    def sent_bytes(self, number: int) -> int:
        """By one of the hosts to the other."""
        return int(run(*self.inside(number, "cat", "/sys/class/net/eth0/statistics/tx_bytes")))

    def _add_address_6(self, number: int) -> None:
        words = ("address", "replace", f"{ADDRESSES_6[number]}/64", "dev", "eth0")
        # Without the second in which the kernel looks for another host of that address.
        run("ip", "-n", self.namespaces[number], *words, "nodad")

    def close(self) -> None:
        for namespace in self.namespaces:
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)
            shutil.rmtree(Path("/etc/netns", namespace), ignore_errors=True)


class Hosts(Network):
    """Such hosts with sshd and keys, and a hostfile."""

    def __init__(self, folder: Path) -> None:
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.key = folder / "key"
        self.hostfile = folder / "hosts"
        self.hostfile.write_text("".join(f"{one} slots=2\n" for one in ADDRESSES))
        super().__init__(folder)

    def _connect(self) -> None:
        super()._connect()
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
        return (
            f"-i {self.key} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
            "-o LogLevel=ERROR"
        )

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.kill()
            daemon.wait()
        super().close()
