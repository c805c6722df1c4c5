"""The command `deepspeed`: zerorun's launcher with the compatibility active, and DeepSpeed's
functions for lists of hosts."""

import argparse
import base64
import json
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from deepspeed.utils.logging import logger

DEEPSPEED_ENVIRONMENT_NAME = os.getenv("DS_ENV_FILE", ".deepspeed_env")
DEEPSPEED_ENVIRONMENT_PATHS = [os.path.expanduser("~"), "."]
DLTS_HOSTFILE = "/job/hostfile"
_HOST = re.compile(r"(\S+)\s+slots=(\d+)")

Slots = dict[str, list[int]]  # the slots of each host, in the order of ranks


def main(args: list[str] | None = None) -> None:
    """Becomes `zerorun --deepspeed_compat ARGUMENTS`.

    Raises ValueError for hosts and slots that are both named and counted.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for names in (("-i", "--include"), ("-e", "--exclude"), ("--num_nodes",), ("--num_gpus",)):
        parser.add_argument(*names)
    parser.add_argument("script", nargs=argparse.REMAINDER)
    given, _ = parser.parse_known_args(args)
    if (given.num_nodes or given.num_gpus) and (given.include or given.exclude):
        raise ValueError("Cannot specify num_nodes/gpus with include/exclude")
    command = [sys.executable, "-m", "zerorun", "--deepspeed_compat"]
    os.execv(sys.executable, [*command, *(sys.argv[1:] if args is None else args)])


# The options of DeepSpeed's launcher that take a value, by their type and default; and the flags.
_OPTIONS: dict[str, tuple[type, object]] = {
    "num_nodes": (int, -1),
    "num_gpus": (int, -1),
    "master_port": (int, 29500),
    "master_addr": (str, ""),
    "node_rank": (int, -1),
    "launcher": (str, "pdsh"),
    "launcher_args": (str, ""),
    "enable_each_rank_log": (str, "None"),
    "bind_core_list": (str, None),
    "ssh_port": (int, None),
    "venv_script": (str, None),
    "log_level": (str, "info"),
}
_FLAGS = (
    "module",
    "no_python",
    "no_local_rank",
    "no_ssh",
    "no_ssh_check",
    "force_multi",
    "save_pid",
    "bind_cores_to_rank",
)


def parse_args(args: list[str] | None = None) -> argparse.Namespace:
    """A command line of DeepSpeed's launcher, for programs that build one; main() reads its own."""
    parser = argparse.ArgumentParser(description="Starts the ranks of a job.")
    parser.add_argument("-H", "--hostfile", default=DLTS_HOSTFILE)
    parser.add_argument("-i", "--include", default="")
    parser.add_argument("-e", "--exclude", default="")
    for name, (kind, default) in _OPTIONS.items():
        also = ["--num_accelerators"] if name == "num_gpus" else []
        parser.add_argument(f"--{name}", *also, type=kind, default=default)
    parser.add_argument("--autotuning", default="", choices=["tune", "run"])
    for name in _FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("user_script")
    parser.add_argument("user_args", nargs=argparse.REMAINDER)
    return parser.parse_args(args)


def fetch_hostfile(hostfile_path: str) -> dict[str, int] | None:
    """The number of slots of each host; None where there is no file.

    Raises ValueError for a line that is not `HOST slots=N`, for a host given twice and for a file
    without hosts.
    """
    if not os.path.isfile(hostfile_path):
        logger.warning("no hostfile %s: training on this host alone", hostfile_path)
        return None
    with open(hostfile_path, encoding="utf-8") as file:
        return _parse_hostfile(file, hostfile_path)


def _parse_hostfile(hostfile_lines: Iterable[str], name: str = "") -> dict[str, int]:
    found: dict[str, int] = {}
    for number, text in enumerate(hostfile_lines, 1):
        line, place = text.strip(), f"Hostfile {name}:{number}"
        if not line or line.startswith("#"):
            continue
        match = _HOST.match(line)
        if match is None:
            raise ValueError(f"{place}: got {line!r}, expected HOST slots=N")
        if match[1] in found:
            raise ValueError(f"{place}: multiple entries for {match[1]}")
        found[match[1]] = int(match[2])
    if not found:
        raise ValueError(f"Hostfile {name} is empty, expected lines HOST slots=N")
    return found


def parse_node_config(node_config: str) -> tuple[str, list[int]]:
    """`HOST` or `HOST:0,2`: the host and its slots, none for all."""
    host, separator, slots = node_config.partition(":")
    return host, [int(slot) for slot in slots.split(",")] if separator else []


def parse_node_config_list(node_config_list: str) -> Slots:
    """Hosts that `@` separates, with sorted slots; one that is there twice has those of both."""
    found: Slots = {}
    for text in node_config_list.split("@"):
        host, slots = parse_node_config(text)
        found[host] = sorted({*found.get(host, []), *slots})
    return found


def parse_resource_filter(
    host_info: Mapping[str, list[int]], include_str: str = "", exclude_str: str = ""
) -> Slots:
    """Hosts and slots as --include or --exclude name them, in the order of `host_info`.

    Raises ValueError for both at once and for hosts or slots that are not there.
    """
    if include_str and exclude_str:
        raise ValueError("include_str and exclude_str are mutually exclusive.")
    if not include_str and not exclude_str:
        return dict(host_info)
    named = parse_node_config_list(include_str or exclude_str)
    for host, slots in named.items():
        if host not in host_info:
            raise ValueError(f"Hostname '{host}' not found in hostfile")
        unknown = [slot for slot in slots if slot not in host_info[host]]
        if unknown:
            raise ValueError(f"No slot '{unknown[0]}' specified on host '{host}'")
    chosen: Slots = {}
    for host, slots in host_info.items():
        wanted = named.get(host, []) or slots  # a host alone means all of its slots
        is_named = host in named
        if include_str:
            chosen[host] = list(dict.fromkeys(wanted)) if is_named else []
        else:
            chosen[host] = [slot for slot in slots if not (is_named and slot in wanted)]
    return {host: slots for host, slots in chosen.items() if slots}


def parse_inclusion_exclusion(
    resource_pool: Mapping[str, int], inclusion: str, exclusion: str
) -> Slots:
    """As parse_resource_filter, of hosts with their numbers of slots."""
    hosts = {host: list(range(slots)) for host, slots in resource_pool.items()}
    return parse_resource_filter(hosts, inclusion, exclusion)


def apply_num_nodes_and_gpus(
    active_resources: Mapping[str, list[int]], num_nodes: int, num_gpus: int
) -> Slots:
    """The first `num_nodes` hosts with `num_gpus` slots each; numbers below 1 change nothing."""
    hosts = list(active_resources)[: num_nodes if num_nodes > 0 else None]
    return {
        host: list(range(num_gpus)) if num_gpus > 0 else list(active_resources[host])
        for host in hosts
    }


def encode_world_info(world_info: Mapping[str, list[int]]) -> str:
    """URL-safe base64 of the hosts and slots as JSON."""
    return base64.urlsafe_b64encode(json.dumps(world_info).encode()).decode()


# --- the base of launchers that programs write for their own clusters ---


class MultiNodeRunner(ABC):
    """Makes the command that starts a job's ranks on several hosts.

    zerorun's own are in its launcher: ``zerorun --hostfile FILE --launcher NAME``.
    """

    def __init__(self, args: Any, world_info_base64: str) -> None:
        self.args, self.world_info_base64 = args, world_info_base64
        self.validate_args()
        self.user_arguments, self.user_script = self.parse_user_args(), args.user_script
        self.exports: dict[str, str] = {}

    @abstractmethod
    def backend_exists(self) -> bool:
        """True if this host has what the command needs."""

    @abstractmethod
    def get_cmd(self, environment: dict[str, str], active_resources: Any) -> list[str]:
        """The command."""

    def add_export(self, key: str, var: str) -> None:
        """Sets a variable on all hosts; quoted where a shell would read it otherwise."""
        value = var.strip()
        self.exports[key.strip()] = f'"{value}"' if re.search(r"[^\w@%+=:,./-]", value) else value

    def parse_user_args(self) -> list[str]:
        return self.args.user_args

    @property
    def name(self) -> str:
        return type(self).__name__

    def validate_args(self) -> None:  # noqa: B027 - not every launcher refuses some
        """Raises for arguments that this launcher does not take."""

    @classmethod  # noqa: B027 - not every launcher refuses some
    def validate_active_resources(cls, active_resources: Any) -> None:
        """Raises for hosts and slots that this launcher cannot choose."""


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --deepspeed and --deepspeed_config, and their older names."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    for name in ("deepspeed", "deepscale"):
        hidden = argparse.SUPPRESS if name == "deepscale" else None
        group.add_argument(f"--{name}", default=False, action="store_true", help=hidden)
        group.add_argument(f"--{name}_config", default=None, type=str, help=hidden)
    return parser


if __name__ == "__main__":
    main()
