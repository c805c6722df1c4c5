"""How the Python benchmarks take times."""

from __future__ import annotations

import time
from collections.abc import Callable


def least_ms(
    call: Callable[[], object],
    warmup: int,
    steps: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The least time of `steps` calls, after `warmup` calls that do not count."""
    taken = []
    for index in range(warmup + steps):
        begin = clock()
        call()
        if index >= warmup:
            taken.append(clock() - begin)
    return min(taken) * 1e3
