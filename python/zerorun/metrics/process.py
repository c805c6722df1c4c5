"""The memory of this process, as the kernel counts it."""

from __future__ import annotations

import os
import resource

__all__ = ["peak_rss_bytes", "rss_bytes"]

_PAGE = os.sysconf("SC_PAGE_SIZE")
_KIB = 1024


def rss_bytes() -> int:
    """Resident memory, shared memory included."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
