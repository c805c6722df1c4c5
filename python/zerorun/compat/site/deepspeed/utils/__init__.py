"""deepspeed.utils: what has no module here; the names that it passes on are found in theirs."""

# ruff: noqa: F401 - scripts import these names from here

import functools
import itertools
from collections.abc import Callable
from typing import Any

from torch import nn
from zerorun.dataloader import RepeatingLoader
from zerorun.model.engine_ranks import asked

from deepspeed.comm import is_initialized
from deepspeed.utils import groups
from deepspeed.utils.logging import log_dist, logger


def instrument_w_nvtx(function: Callable[..., Any]) -> Callable[..., Any]:
    """No profiler ranges."""
    return function


class DeprecatedException(Exception):  # noqa: N818 - DeepSpeed's name
    """For scripts that catch it."""


# --- modules by their dotted names ---


def recursive_getattr(model: nn.Module, module_name: str) -> Any:
    return functools.reduce(getattr, module_name.split("."), model)


def recursive_setattr(model: nn.Module, module_name: str, module: Any) -> None:
    parent, _, name = module_name.rpartition(".")
    setattr(recursive_getattr(model, parent) if parent else model, name, module)


# --- lists of cores as commands take them ---


def parse_range(rng: str) -> list[int]:
    """`3` or `3-6`. Raises ValueError for a range that goes down."""
    first, separator, last = rng.partition("-")
    found = list(range(int(first), int(last if separator else first) + 1))
    if not found:
        raise ValueError(f"cores {rng!r}: the range ends before it begins")
    return found


def parse_range_list(range_str: str) -> list[int]:
    """`0,2-4`, in rising order. Raises ValueError for cores that come twice or out of order."""
    found = [core for part in range_str.split(",") for core in parse_range(part)]
    if any(core >= following for core, following in itertools.pairwise(found)):
        raise ValueError(f"cores {range_str!r}: expected each once and in rising order")
    return found


# --- what an mpu says of tensor and pipeline parallelism, under any of its names ---

# The newest first: Megatron's, of DeepSpeed's pipelines, and the first of both.
_TENSOR = ("tensor_model_parallel", "slice_parallel", "model_parallel")
_PIPELINE = ("pipeline_model_parallel", "pipe_parallel")


def _asking(kinds: tuple[str, ...], what: str, otherwise: Any = None) -> Callable[..., Any]:
    return lambda mpu=None: asked(mpu, *(f"get_{kind}_{what}" for kind in kinds)) or otherwise


bwc_tensor_model_parallel_rank = _asking(_TENSOR, "rank", 0)
bwc_tensor_model_parallel_world_size = _asking(_TENSOR, "world_size", 1)
bwc_tensor_model_parallel_group = _asking(_TENSOR, "group")
bwc_pipeline_parallel_world_size = _asking(_PIPELINE, "world_size", 1)
_pipeline_group = _asking(_PIPELINE, "group")


def bwc_pipeline_parallel_group(mpu: Any = None) -> Any:
    """Raises AssertionError for an mpu without pipelines."""
    found = _pipeline_group(mpu)
    if mpu is not None and found is None:
        raise AssertionError(f"{type(mpu).__name__} has no group of a pipeline's ranks")
    return found
