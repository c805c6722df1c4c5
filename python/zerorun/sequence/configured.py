"""The sequence parallelism that a configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zerorun import _C, communicator
from zerorun import config as configuration
from zerorun.sequence.groups import data_parallel_size, start


def start_configured(
    parsed: configuration.ParsedConfig,
    given: Mapping[str, Any],
    parts: Sequence[Sequence[int]] | None = None,
) -> configuration.ParsedConfig:
    """Makes the groups that `parsed` asks for; returns it with their dtype of communication.

    `given` is its content. `parts`: see :func:`start`. Collective where it asks for groups. Raises
    ConfigError for sizes that the number of ranks contradicts.
    """
    size = configuration.value_of(parsed, "/sequence_parallel_size", 1)
    if size > 1:
        start(size, parts)
    data_size = configuration.value_of(parsed, "/data_parallel_size")
    if data_size is not None:
        ranks = communicator.world(parsed.config.comm_timeout_s).world_size
        ranks = ranks if parts is None else len(parts[0])
        expected = data_parallel_size(ranks)
        if data_size != expected:
            raise _C.ConfigError(
                f"/data_parallel_size: got {data_size}, expected {expected}: {ranks} ranks, "
                f"{ranks // expected} for each sequence"
            )
    if size == 1:
        return parsed
    dtype = configuration.value_of(parsed, "/seq_parallel_communication_data_type", "fp32")
    changed = {**given, "communication_data_type": dtype}
    return configuration.parse(changed, parsed.config.source)
