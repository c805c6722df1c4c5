"""The base of launchers that programs write for their own clusters."""

import re
from abc import ABC, abstractmethod
from typing import Any


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
