"""Helpers that scripts import."""

# ruff: noqa: F403 - scripts import these names from here

import gc
import itertools
import os
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import graph

from deepspeed import comm
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime._norms import *
from deepspeed.utils.logging import logger


def ensure_directory_exists(filename: str) -> None:
    os.makedirs(os.path.dirname(filename), exist_ok=True)


def set_random_seed(seed: int) -> None:
    """Seeds Python, PyTorch and, where it is there, NumPy."""
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed)


def copy_to_device(item: Any, device: Any, criterion_func: Callable[[Any], bool]) -> Any:
    """The items of nested lists, tuples and dictionaries that meet the criterion, copied."""

    def copy(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    return _mapped(item, copy, criterion_func)


def move_to_device(
    item: Any, device: Any, criterion_func: Callable[[Any], bool] | None = None
) -> Any:
    """As copy_to_device, but the tensors themselves move."""

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value.data = value.data.to(device)
        return value

    return _mapped(item, move, criterion_func or (lambda _: True))


def _mapped(item: Any, change: Callable[[Any], Any], chosen: Callable[[Any], bool]) -> Any:
    if isinstance(item, list | tuple):
        return type(item)(_mapped(value, change, chosen) for value in item)
    if isinstance(item, dict):
        return {key: _mapped(value, change, chosen) for key, value in item.items()}
    return change(item) if chosen(item) else item


def prefix_sum_inc(weights: Iterable[int]) -> list[int]:
    """Sums up to and with each weight."""
    return list(itertools.accumulate(weights))


def partition_uniform(num_items: int, num_parts: int) -> list[int]:
    """Where each of the parts begins, and the end; the first parts are larger by one at most."""
    size, larger = divmod(num_items, num_parts)
    return [part * size + min(part, larger) for part in range(num_parts + 1)]


def partition_balanced(weights: Sequence[int], num_parts: int) -> list[int]:
    """Where each part begins, and the end, so that the heaviest part is as light as can be."""
    if len(weights) <= num_parts:
        return partition_uniform(len(weights), num_parts)
    low, high = max(weights), sum(weights)
    while low < high:
        limit = (low + high) // 2
        if len(_parts_below(weights, limit)) <= num_parts:
            high = limit
        else:
            low = limit + 1
    begins = _parts_below(weights, high)
    while len(begins) < num_parts:  # as many parts as were asked for: halves of the largest
        ends = [*begins[1:], len(weights)]
        sizes = [end - begin for begin, end in zip(begins, ends, strict=True)]
        widest = sizes.index(max(sizes))
        begins.insert(widest + 1, begins[widest] + sizes[widest] // 2)
    return [*begins, len(weights)]


def _parts_below(weights: Sequence[int], limit: float) -> list[int]:
    """Where parts of at most `limit` begin, taken from the front."""
    begins, total = [0], 0
    for index, weight in enumerate(weights):
        if total + weight > limit and index > begins[-1]:
            begins.append(index)
            total = 0
        total += weight
    return begins


class PartitionedTensor:
    """This rank's part of a tensor that all ranks of a group have at first."""

    def __init__(self, tensor: torch.Tensor, group: Any, partition_meta: Any = None) -> None:
        self.group = group
        self.num_parts, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.orig_size, self.orig_device = list(tensor.shape), tensor.device
        self.partition = partition_uniform(tensor.numel(), self.num_parts)
        begin, end = self.partition[self.rank : self.rank + 2]
        self.local_data = tensor.detach().flatten()[begin:end].clone()

    @classmethod
    def from_meta(
        cls, meta: torch.Tensor, local_part: torch.Tensor, group: Any, device: Any = None
    ) -> "PartitionedTensor":
        """The counterpart of to_meta() and data()."""
        dimensions, *numbers = meta.tolist()
        size, (parts, rank, *partition) = numbers[:dimensions], numbers[dimensions:]
        found = cls(torch.empty(0), group)
        if (parts, rank) != (found.num_parts, found.rank):
            raise AssertionError(
                f"PartitionedTensor.from_meta: got part {rank} of {parts}, but this is rank "
                f"{found.rank} of {found.num_parts}"
            )
        found.orig_size, found.partition = size, partition
        found.orig_device = device or get_accelerator().device_name()
        found.local_data = local_part.detach()
        return found

    def to_meta(self) -> torch.Tensor:
        """Shape, number of parts, rank and where the parts begin, as one tensor of integers."""
        numbers = [len(self.orig_size), *self.orig_size, self.num_parts, self.rank]
        return torch.tensor([*numbers, *self.partition], device=self.orig_device)

    def full(self, device: Any = None) -> torch.Tensor:
        """The whole tensor. Collective."""
        kept, sizes = self.local_data, self.partition
        parts = [kept.new_empty(sizes[i + 1] - sizes[i]) for i in range(self.num_parts)]
        for rank, part in enumerate(parts):
            if rank == self.rank:
                part.copy_(kept)
            dist.broadcast(part, comm.get_global_rank(self.group, rank), self.group)
        return torch.cat(parts).view(self.orig_size).to(device or self.orig_device)

    def data(self) -> torch.Tensor:
        return self.local_data

    def local_size(self) -> torch.Size:
        return self.local_data.shape

    def full_size(self) -> list[int]:
        return self.orig_size


def call_to_str(base: str, *args: Any, **kwargs: Any) -> str:
    """`base` as a call, for messages."""
    given = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
    return f"{base}({', '.join(given)})"


def see_memory_usage(message: str, force: bool = False) -> None:
    """Logs what the accelerator holds when `force` is set."""
    if not force:
        return
    gc.collect()
    accelerator = get_accelerator()
    now, peak = accelerator.memory_allocated(), accelerator.max_memory_allocated()
    logger.info("%s: memory %.2f GB, at most %.2f GB", message, now / 2**30, peak / 2**30)


def check_internal_apis_for_count_used_parameters() -> bool:
    """True where PyTorch can say what a backward that is under way will reach."""
    names = ("_current_graph_task_id", "_will_engine_execute_node")
    has_nodes = hasattr(graph, "_get_grad_fn_or_grad_acc")
    return has_nodes and all(hasattr(torch._C, name) for name in names)


def count_used_parameters_in_backward(parameters: Iterable[Any]) -> int:
    """How many of the parameters the backward that is under way reaches. For hooks within it:
    raises RuntimeError elsewhere."""
    if not check_internal_apis_for_count_used_parameters():
        raise AssertionError("this PyTorch does not say what a backward reaches")
    if torch._C._current_graph_task_id() == -1:
        raise RuntimeError("count_used_parameters_in_backward is for hooks within a backward")
    trained = [p for p in parameters if isinstance(p, torch.Tensor) and p.requires_grad]
    with torch.enable_grad():  # hooks run without, and older PyTorch makes nodes with it only
        nodes = {graph._get_grad_fn_or_grad_acc(p) for p in trained} - {None}
    return sum(map(torch._C._will_engine_execute_node, nodes))
