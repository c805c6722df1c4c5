"""The status of a partitioned parameter, in DeepSpeed's words."""

from __future__ import annotations

import enum

from zerorun.model.partition import Partition

__all__ = ["ZeroParamStatus", "status_of"]


class ZeroParamStatus(enum.Enum):
    """Values as in DeepSpeed."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


def status_of(partition: Partition) -> ZeroParamStatus:
    """A gather is never in flight for Python: it waits for it."""
    return ZeroParamStatus.AVAILABLE if partition.available else ZeroParamStatus.NOT_AVAILABLE
