"""The sequence parallelism that an mpu, or groups that there are, ask for."""

from collections.abc import Mapping
from typing import Any

import zerorun
from zerorun import sequence


def sequence_settings(config: Mapping[str, Any], mpu: Any = None) -> dict[str, Any]:
    """`config` with the number of ranks that share a sequence, wherever that is from.

    Raises ConfigError for sizes that contradict each other.
    """
    given = config.get("sequence_parallel_size")
    size = given if isinstance(given, int) else None
    of_mpu = _size_of(mpu)
    if size is not None and of_mpu is not None and size != of_mpu:
        raise zerorun.ConfigError(
            f"/sequence_parallel_size: got {size}, but the mpu has {of_mpu}: give one of them"
        )
    groups = sequence.current()
    found = of_mpu or (groups.size if groups is not None else 1)
    return {**config, "sequence_parallel_size": found} if (size or 1) == 1 < found else {**config}


def _size_of(mpu: Any) -> int | None:
    """Ranks that share a sequence in a Megatron-style object."""
    if mpu is None:
        return None
    query = getattr(mpu, "get_sequence_parallel_world_size", None)
    return None if query is None else query()
