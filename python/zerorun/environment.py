"""The environment variables that the package reads; every other module asks here.

The variables of the rendezvous (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and all settings of the
core are read by the core itself.
"""

import os
import re

from zerorun import _C


def adopt_scheduler(port: int | None = None) -> bool:
    """Sets RANK and the rest for PyTorch where srun or mpirun has started several ranks.

    `port` is where they meet unless MASTER_PORT says it; None: one that the job's number gives.
    Returns whether the variables are set. Raises ConfigError as ``_C.rank_from_environment``.
    """
    if "RANK" in os.environ:
        return True
    job = _C.rank_from_environment()
    if job.world_size == 1:
        return False
    if port is not None:
        os.environ.setdefault("MASTER_PORT", str(port))
    os.environ.update(
        RANK=str(job.rank),
        WORLD_SIZE=str(job.world_size),
        LOCAL_RANK=str(job.local_rank),
        LOCAL_WORLD_SIZE=str(job.local_world_size),
        MASTER_ADDR=job.master_addr,
    )
    os.environ.setdefault("MASTER_PORT", str(job.master_port))
    return True


def has_own_gpu() -> bool:
    """CUDA_VISIBLE_DEVICES: whether a scheduler has given this process one GPU for itself."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return bool(visible) and "," not in visible


def visible_gpus() -> str:
    """CUDA_VISIBLE_DEVICES: the GPUs that this process is given by name, as the launcher does.

    Empty also if it begins with another word (-1, none), by which CUDA shows none.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    return visible if re.match(r"[0-9]|GPU-|MIG-", visible) else ""


def local_rank() -> int | None:
    """LOCAL_RANK: the rank's number on its host. Raises ConfigError unless it is a number."""
    if "LOCAL_RANK" not in os.environ:
        adopt_scheduler()
    return _number("LOCAL_RANK")


def rank() -> int:
    """RANK: the rank's number, 0 when it is not set. Raises ConfigError unless it is a number."""
    return _number("RANK") or 0


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise _C.ConfigError(
            f"the environment variable {name} is '{text}', expected a number from 0 on: start "
            "the program with zerorun or torchrun, which set it, or unset it"
        )
    return int(text)


def master_address() -> str:
    """MASTER_ADDR: where rank 0's host is reached; this host alone when it is not set."""
    return os.environ.get("MASTER_ADDR") or "127.0.0.1"


def may_share_gpus() -> bool:
    """ZERORUN_SHARE_GPUS: whether several ranks may train on one GPU."""
    return os.environ.get("ZERORUN_SHARE_GPUS", "") not in {"", "0"}


def meets_at_torchrun() -> bool:
    """TORCHELASTIC_USE_AGENT_STORE: whether torchrun itself listens on MASTER_PORT."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def compat() -> str:
    """ZERORUN_COMPAT: "deepspeed" turns the stand-in for DeepSpeed on, "0" off for good."""
    return os.environ.get("ZERORUN_COMPAT", "")


def order_collectives() -> None:
    """NCCL_LAUNCH_ORDER_IMPLICIT: communicators of one GPU launch in the program's order.

    Those of PyTorch may be the first to launch, after which NCCL does not read it again.
    """
    os.environ.setdefault("NCCL_LAUNCH_ORDER_IMPLICIT", "1")


def prepend(variable: str, folder: str) -> None:
    """Puts a folder first in a variable that is a path, for the processes that this one starts."""
    entries = [entry for entry in os.environ.get(variable, "").split(os.pathsep) if entry]
    if folder not in entries:
        os.environ[variable] = os.pathsep.join([folder, *entries])


def set_python(executable: str) -> None:
    """ZERORUN_PYTHON: the python that the launcher runs programs with."""
    os.environ["ZERORUN_PYTHON"] = executable
