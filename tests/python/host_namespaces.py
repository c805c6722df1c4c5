"""Network namespaces as hosts: each has an address on one network, and a loopback of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess


def why_not() -> str | None:
    """The reason why this machine cannot have them, or nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip (Debian: iproute2)"
    probe = f"zr-{secrets.token_hex(3)}"
    added = subprocess.run(["ip", "netns", "add", probe], check=False, capture_output=True)
    if added.returncode != 0:
        return "this kernel or container does not let root make network namespaces"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


class Hosts:
    """`count` namespaces, each with a veth pair into a bridge; gone when the context is left."""

    def __init__(self, count: int) -> None:
        self._prefix = f"zr-{secrets.token_hex(3)}"
        self._count = count

    def __enter__(self) -> Hosts:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in [self._bridge, *(self.name(host) for host in range(self._count))]:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    @property
    def _bridge(self) -> str:
        return f"{self._prefix}-br"

    def _make(self) -> None:
        _ip("netns", "add", self._bridge)
        _ip("-n", self._bridge, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._bridge, "link", "set", "br0", "up")
        for host in range(self._count):
            name, port = self.name(host), f"port{host}"
            _ip("netns", "add", name)
            pair = ("type", "veth", "peer", "name", port, "netns", self._bridge)
            _ip("-n", name, "link", "add", "eth0", "index", "9", *pair)
            _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", self._bridge, "link", "set", port, "master", "br0", "up")

    def name(self, host: int) -> str:
        return f"{self._prefix}-{host}"

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def cut(self, host: int) -> None:
        """Takes the host off the network: what is sent to it is lost without a word."""
        _ip("-n", self._bridge, "link", "set", f"port{host}", "down")

    def mend(self, host: int) -> None:
        _ip("-n", self._bridge, "link", "set", f"port{host}", "up")

    def command(self, host: int, command: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.name(host), *command]


def rank_environment(
    hosts: Hosts, rank: int, world_size: int, ranks_per_host: int, port: int = 29500
) -> dict[str, str]:
    """The variables of a rank where hosts have equally many."""
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank % ranks_per_host),
        "LOCAL_WORLD_SIZE": str(ranks_per_host),
        "MASTER_ADDR": hosts.address(0),
        "MASTER_PORT": str(port),
        "ZERORUN_JOB_SECRET": "of this test",
        "OMP_NUM_THREADS": "1",
    }


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
