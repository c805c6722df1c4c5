"""The environment variables that the package reads; every other module asks here.

The variables of the rendezvous (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and all settings of the
core are read by the core itself.
"""

from __future__ import annotations

import os

from zerorun import _C

__all__ = ["compat", "local_rank", "may_share_gpus", "meets_at_torchrun", "prepend"]


def local_rank() -> int | None:
    """LOCAL_RANK: the rank's number on its host. Raises ConfigError unless it is a number."""
    text = os.environ.get("LOCAL_RANK")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise _C.ConfigError(
            f"the environment variable LOCAL_RANK is '{text}', expected a number from 0 on: start "
            "the program with zerorun or torchrun, which set it, or unset it"
        )
    return int(text)


def may_share_gpus() -> bool:
    """ZERORUN_SHARE_GPUS: whether several ranks may train on one GPU."""
    return os.environ.get("ZERORUN_SHARE_GPUS", "") not in {"", "0"}


def meets_at_torchrun() -> bool:
    """TORCHELASTIC_USE_AGENT_STORE: whether torchrun itself listens on MASTER_PORT."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def compat() -> str:
    """ZERORUN_COMPAT: "deepspeed" turns the stand-in for DeepSpeed on, "0" off for good."""
    return os.environ.get("ZERORUN_COMPAT", "")


def prepend(variable: str, folder: str) -> None:
    """Puts a folder first in a variable that is a path, for the processes that this one starts."""
    entries = [entry for entry in os.environ.get(variable, "").split(os.pathsep) if entry]
    if folder not in entries:
        os.environ[variable] = os.pathsep.join([folder, *entries])
