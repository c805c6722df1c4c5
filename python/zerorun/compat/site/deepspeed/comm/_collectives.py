"""torch.distributed's collectives, called with the arguments of deepspeed.comm."""

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

_LOGGED = ("prof", "log_name", "debug")  # for DeepSpeed's log of a program's own collectives


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
