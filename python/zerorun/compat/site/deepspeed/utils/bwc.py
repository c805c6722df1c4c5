"""What an mpu says of tensor and pipeline parallelism, under any of the names that it has had."""

from typing import Any

# The newest first: Megatron's, of DeepSpeed's pipelines, and the first of both.
_TENSOR = ("tensor_model_parallel", "slice_parallel", "model_parallel")
_PIPELINE = ("pipeline_model_parallel", "pipe_parallel")


def _ask(mpu: Any, kinds: tuple[str, ...], what: str) -> Any:
    """None for an mpu that has no such parallelism."""
    names = (f"get_{kind}_{what}" for kind in kinds)
    found = next((getattr(mpu, name) for name in names if hasattr(mpu, name)), None)
    return found() if found is not None else None


def bwc_tensor_model_parallel_rank(mpu: Any = None) -> int:
    return _ask(mpu, _TENSOR, "rank") or 0


def bwc_tensor_model_parallel_world_size(mpu: Any = None) -> int:
    return _ask(mpu, _TENSOR, "world_size") or 1


def bwc_tensor_model_parallel_group(mpu: Any = None) -> Any:
    return _ask(mpu, _TENSOR, "group")


def bwc_pipeline_parallel_world_size(mpu: Any = None) -> int:
    return _ask(mpu, _PIPELINE, "world_size") or 1


def bwc_pipeline_parallel_group(mpu: Any = None) -> Any:
    """Raises AssertionError for an mpu without pipelines."""
    found = _ask(mpu, _PIPELINE, "group")
    if mpu is not None and found is None:
        raise AssertionError(f"{type(mpu).__name__} has no group of a pipeline's ranks")
    return found
