"""The sequence parallelism that a configuration asks for."""

from __future__ import annotations

from typing import Any

from zerorun import _C, communicator
from zerorun import config as configuration
from zerorun.sequence.groups import data_parallel_size, start

__all__ = ["start_configured"]


def start_configured(
    parsed: configuration.ParsedConfig, given: dict[str, Any]
) -> tuple[configuration.ParsedConfig, dict[str, Any]]:
    """Makes the groups that `parsed` asks for; returns it with their dtype of communication.

    `given` is its content, which is returned too. Collective where it asks for groups. Raises
    ConfigError for sizes that the number of ranks contradicts.
    """
    size = configuration.value_of(parsed, "/sequence_parallel_size", 1)
    if size > 1:
        start(size)
    data_size = configuration.value_of(parsed, "/data_parallel_size")
    if data_size is not None:
        world_size = communicator.world(parsed.config.comm_timeout_s).world_size
        expected = data_parallel_size(world_size)
        if data_size != expected:
            raise _C.ConfigError(
                f"/data_parallel_size: got {data_size}, expected {expected}: {world_size} ranks, "
                f"{world_size // expected} for each sequence"
            )
    if size == 1:
        return parsed, given
    dtype = configuration.value_of(parsed, "/seq_parallel_communication_data_type", "fp32")
    changed = {**given, "communication_data_type": dtype}
    return configuration.parse(changed, parsed.config.source), given
