"""Lists of cores as commands take them."""

import itertools


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
