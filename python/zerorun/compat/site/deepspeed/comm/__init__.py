"""deepspeed.comm: torch.distributed, which scripts use for their own collectives."""

# ruff: noqa: F401, F403 - scripts import these names from here

import os
import re
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import zerorun.metrics
from torch.distributed import ReduceOp, irecv, is_available, isend, new_group, recv, send
from zerorun import environment
from zerorun.device import local_device, make_current
from zerorun.program_warning import warn

from deepspeed.accelerator import get_accelerator
from deepspeed.comm._collectives import *

DEFAULT_PORT = 29500
_TIMEOUT = timedelta(minutes=30)


def is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _backend(asked: str | None) -> str:
    """The backend that serves the ranks' tensors."""
    own: str = get_accelerator().communication_backend_name()
    if asked != "nccl" or own == "nccl":
        return asked or own
    if os.environ.get("RANK", "0") == "0":
        warn(f"init_distributed: got dist_backend='nccl', but the ranks run on CPUs: it is {own}")
    return own


def _device_id(backend: str, device: torch.device) -> torch.device | None:
    """The GPU of NCCL's group. With one, torch after 2.6.0 and before 2.7.1 hangs (DeepSpeed leaves
    it out there, too)."""
    release = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:3])
    return device if backend == "nccl" and not (2, 6, 0) < release < (2, 7, 1) else None


def init_distributed(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = DEFAULT_PORT,
    verbose: bool = True,
    timeout: timedelta = _TIMEOUT,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """torch.distributed's default group, unless there is one; of one rank without a launcher.

    This rank's GPU becomes PyTorch's current one first, and NCCL's group is bound to it: nothing
    goes to the GPU that is current by default, which is the first one on every rank.

    On CPU ranks "nccl" is Gloo, with a warning, since scripts for GPUs name it. AssertionError for
    `dist_init_required` False when there is none.
    """
    if is_initialized():
        return
    if dist_init_required is False:
        raise AssertionError(
            "dist_init_required is False, but torch.distributed has no default group: make it with "
            "torch.distributed.init_process_group() before, or leave dist_init_required out"
        )
    if auto_mpi_discovery:
        environment.adopt_scheduler(None if distributed_port == DEFAULT_PORT else distributed_port)
    device = local_device()
    make_current(device)
    backend = _backend(dist_backend)
    bound = _device_id(backend, device)
    if "RANK" not in os.environ and init_method is None and rank < 0:
        os.environ.setdefault("LOCAL_RANK", "0")
        store = dist.HashStore()
        dist.init_process_group(
            backend, store=store, timeout=timeout, rank=0, world_size=1, device_id=bound
        )
        return
    dist.init_process_group(
        backend,
        init_method=init_method,
        timeout=timeout,
        rank=rank,
        world_size=world_size,
        device_id=bound,
    )


def get_rank(group: Any = None) -> int:
    return dist.get_rank(group)


def get_world_size(group: Any = None) -> int:
    return dist.get_world_size(group)


def get_global_rank(group: Any = None, group_rank: int = 0) -> int:
    return dist.get_global_rank(group or dist.group.WORLD, group_rank)


def get_local_rank() -> int:
    return environment.local_rank() or 0


def get_world_group() -> Any:
    return dist.group.WORLD


def destroy_process_group(group: Any = None) -> None:
    dist.destroy_process_group(group)


def log_summary(show_straggler: bool = False, return_dict: bool = False) -> dict[str, Any] | None:
    """The collectives of training (``comms_logger``): see zerorun.metrics.log_summary."""
    return zerorun.metrics.log_summary(show_straggler, return_dict)
