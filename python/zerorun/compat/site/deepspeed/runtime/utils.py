"""Helpers that scripts import."""

# ruff: noqa: F401, F403 - scripts import these names from here

import gc
import os
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd import graph

from deepspeed.accelerator import get_accelerator
from deepspeed.runtime._norms import *
from deepspeed.runtime._partitions import PartitionedTensor, partition_uniform
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
    total, sums = 0, []
    for weight in weights:
        total += weight
        sums.append(total)
    return sums


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
