"""The sequence parallelism that a configuration or an mpu asks for."""

from collections.abc import Mapping
from typing import Any

import zerorun
from zerorun import communicator, sequence


def sequence_settings(config: Mapping[str, Any], mpu: Any = None) -> dict[str, Any]:
    """`config` without the keys of sequence parallelism, whose groups there are afterwards.

    Collective where it asks for them. Gradients are reduced in
    ``seq_parallel_communication_data_type`` then. Raises ConfigError for sizes that contradict each
    other, and NotImplementedError for an mpu of tensor or pipeline parallelism.
    """
    settings = dict(config)
    size = settings.pop("sequence_parallel_size", None)
    data_size = settings.pop("data_parallel_size", None)
    dtype = settings.pop("seq_parallel_communication_data_type", None)
    of_mpu = _size_of(mpu)
    if size is not None and of_mpu is not None and size != of_mpu:
        raise zerorun.ConfigError(
            f"/sequence_parallel_size: got {size}, but the mpu has {of_mpu}: give one of them"
        )
    size = size or of_mpu or 1
    groups = sequence.start(size) if size > 1 else sequence.current()
    world_size = communicator.world().world_size
    ranks = sequence.data_parallel_size(world_size)
    if data_size is not None and data_size != ranks:
        raise zerorun.ConfigError(
            f"/data_parallel_size: got {data_size}, expected {ranks}: {world_size} ranks, "
            f"{world_size // ranks} for each sequence"
        )
    if groups is not None and groups.size > 1:
        settings["communication_data_type"] = dtype or "fp32"
    return settings


def _size_of(mpu: Any) -> int | None:
    """Ranks that share a sequence in a Megatron-style object."""
    if mpu is None:
        return None
    if hasattr(mpu, "get_sequence_parallel_world_size"):
        return mpu.get_sequence_parallel_world_size()
    for name in ("model", "tensor_model", "pipeline_model", "pipe"):
        query = getattr(mpu, f"get_{name}_parallel_world_size", None)
        if query is not None and query() > 1:
            raise NotImplementedError(
                f"deepspeed.initialize: mpu has {query()} ranks of {name} parallelism, which is "
                "not part of zerorun: use data and sequence parallelism"
            )
    return None
