"""Helpers that scripts import."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from zerorun.model.partition import partition_of


class ZeRORuntimeException(RuntimeError):  # noqa: N818 - DeepSpeed's name
    """For scripts that catch it; zerorun raises zerorun.Error."""


ZERO_SUPPORTED_OPTIMIZERS = [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad]


def is_zero_supported_optimizer(optimizer: Any) -> bool:
    """Every torch optimizer runs on shards."""
    return True


def is_zero_param(parameter: Any) -> bool:
    """True for a partitioned parameter."""
    return isinstance(parameter, torch.nn.Parameter) and partition_of(parameter) is not None


def get_norm_dtype() -> torch.dtype:
    return torch.float32


def is_builtin_type(obj: Any) -> bool:
    return type(obj).__module__ in {"__builtin__", "builtins"}


def isinstance_namedtuple(obj: Any) -> bool:
    return isinstance(obj, tuple) and hasattr(obj, "_asdict") and hasattr(obj, "_fields")


def apply_to_tensors_only(
    function: Callable[[torch.Tensor], Any], value: Any, warning_msg_fn: Any = None
) -> Any:
    """`function` of every tensor in nested lists, tuples and dictionaries, which are made anew."""
    if isinstance_namedtuple(value):
        return type(value)(*(apply_to_tensors_only(function, item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(apply_to_tensors_only(function, item) for item in value)
    if isinstance(value, dict):
        for key, item in value.items():
            value[key] = apply_to_tensors_only(function, item)
        return value
    return function(value) if isinstance(value, torch.Tensor) else value


def get_lst_from_rank0(lst: list[int]) -> list[int]:
    """Rank 0's list. Collective."""
    held = [lst]
    dist.broadcast_object_list(held, src=0)
    return held[0]


def assert_ints_same_as_other_ranks(ints: list[int]) -> None:
    """Raises RuntimeError on ranks whose list is not rank 0's. Collective."""
    first = get_lst_from_rank0(ints)
    if ints != first:
        raise RuntimeError(f"rank {dist.get_rank()}: got {ints}, expected what rank 0 has: {first}")


def assert_lst_len_same_as_other_ranks(lst: list[int]) -> None:
    """The same of its length."""
    assert_ints_same_as_other_ranks([len(lst)])


# Estimates of memory, answered by `zerorun plan` for every stage at once.


def print_plan(total_params: int, num_gpus_per_node: int, num_nodes: int) -> None:
    """Prints the bytes of each rank and host for a model of that size."""
    command = [sys.executable, "-m", "zerorun", "plan", "--model", str(total_params)]
    command += ["--world_size", str(num_gpus_per_node * num_nodes)]
    command += ["--ranks_per_host", str(num_gpus_per_node)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {found.stderr.strip()}")
    sys.stdout.write(found.stdout)


def estimate_all_live(
    model: torch.nn.Module, num_gpus_per_node: int = 1, num_nodes: int = 1, **_ignored: Any
) -> None:
    """For a model that is there. zerorun counts buffers, so a factor for them is not needed."""
    counts = {p: getattr(p, "ds_numel", p.numel()) for p in model.parameters()}
    print_plan(sum(counts.values()), num_gpus_per_node, num_nodes)


def estimate_all_cold(
    total_params: int,
    largest_layer_params: int = 0,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    **_ignored: Any,
) -> None:
    """For a number of parameters. zerorun takes the largest layer from the size."""
    print_plan(total_params, num_gpus_per_node, num_nodes)
