"""deepspeed.comm: torch.distributed, which scripts use for their own collectives."""

# ruff: noqa: F401 - scripts import these names from here

import functools
import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import zerorun.metrics
from torch.distributed import (
    P2POp,
    ProcessGroup,
    ReduceOp,
    batch_isend_irecv,
    destroy_process_group,
    get_rank,
    get_world_size,
    irecv,
    is_available,
    isend,
    new_group,
    recv,
    send,
)
from zerorun import environment
from zerorun.device import local_device, make_current
from zerorun.program_warning import warn

from deepspeed.accelerator import get_accelerator
from deepspeed.constants import default_pg_timeout

DEFAULT_PORT = 29500
_LOGGED = ("prof", "log_name", "debug")  # for DeepSpeed's log of a program's own collectives


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


def init_distributed(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = DEFAULT_PORT,
    verbose: bool = True,
    timeout: timedelta = default_pg_timeout,
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
    # NCCL's group is bound to the GPU, by which torch after 2.6.0 and before 2.7.1 hangs (DeepSpeed
    # leaves it out there, too).
    release = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:3])
    bound = device if backend == "nccl" and not (2, 6, 0) < release < (2, 7, 1) else None
    where: dict[str, Any] = {"init_method": init_method, "rank": rank, "world_size": world_size}
    if "RANK" not in os.environ and init_method is None and rank < 0:
        os.environ.setdefault("LOCAL_RANK", "0")
        where = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(backend, timeout=timeout, device_id=bound, **where)


def get_global_rank(group: Any = None, group_rank: int = 0) -> int:
    return dist.get_global_rank(group or dist.group.WORLD, group_rank)


def get_local_rank() -> int:
    return environment.local_rank() or 0


def get_world_group() -> Any:
    return dist.group.WORLD


def log_summary(show_straggler: bool = False, return_dict: bool = False) -> dict[str, Any] | None:
    """The collectives of training (``comms_logger``): see zerorun.metrics.log_summary."""
    return zerorun.metrics.log_summary(show_straggler, return_dict)


# --- collectives, called with DeepSpeed's arguments ---


def _called_as_deepspeeds(function: Callable[..., Any], **names: str) -> Callable[..., Any]:
    """`function` without the arguments of the log; `names`: torch's, by DeepSpeed's."""

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        kept = {names.get(name, name): given[name] for name in given if name not in _LOGGED}
        return function(*args, **kept)

    return call


# Newer PyTorch has these under other names, and warns of the old ones.
_gather_flat = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter_flat = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

all_gather = _called_as_deepspeeds(dist.all_gather)
all_gather_into_tensor = _called_as_deepspeeds(_gather_flat, tensor="input_tensor")
all_gather_object = _called_as_deepspeeds(dist.all_gather_object)
all_reduce = _called_as_deepspeeds(dist.all_reduce)
all_to_all = _called_as_deepspeeds(dist.all_to_all)
all_to_all_single = _called_as_deepspeeds(dist.all_to_all_single, tensor="input")
barrier = _called_as_deepspeeds(dist.barrier)
broadcast = _called_as_deepspeeds(dist.broadcast)
broadcast_object_list = _called_as_deepspeeds(dist.broadcast_object_list)
gather = _called_as_deepspeeds(dist.gather)
monitored_barrier = _called_as_deepspeeds(dist.monitored_barrier)
reduce = _called_as_deepspeeds(dist.reduce)
reduce_scatter = _called_as_deepspeeds(dist.reduce_scatter)
reduce_scatter_tensor = _called_as_deepspeeds(_scatter_flat, output_tensor="output", tensor="input")
scatter = _called_as_deepspeeds(dist.scatter)


def inference_all_reduce(
    tensor: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    **_options: Any,
) -> Any:
    return dist.all_reduce(tensor, op, group, async_op)


def get_all_ranks_from_group(group: Any = None) -> list[int]:
    return dist.get_process_group_ranks(group or dist.group.WORLD)
