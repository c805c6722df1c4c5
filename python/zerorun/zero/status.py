"""The status of a partitioned parameter, in DeepSpeed's words."""

from __future__ import annotations

import enum

from zerorun.model.partition import Partition


class ZeroParamStatus(enum.Enum):
    """Whether a parameter is full on this rank; the values are DeepSpeed's."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


def status_of(partition: Partition) -> ZeroParamStatus:
    """The status. Python never sees INFLIGHT, because it waits for gathers."""
    return ZeroParamStatus.AVAILABLE if partition.available else ZeroParamStatus.NOT_AVAILABLE
