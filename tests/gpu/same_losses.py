#!/usr/bin/env python3
"""True if two runs of train have the same losses.

    python tests/gpu/same_losses.py A B BOUND [LEAST]

A and B are what `train --metrics` wrote. In every step the losses differ by at most BOUND of A's.
LEAST is for runs that have to differ: the largest difference is at least that. Exits 0 if all that
is so, else 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def losses(path: str) -> list[float]:
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def main(path: str, other: str, bound: str, least: str = "0") -> int:
    a, b = losses(path), losses(other)
    if not a or len(a) != len(b) or None in a + b:  # null: not finite
        print(f"expected as many finite losses in both, got {a} and {b}")
        return 1
    worst = max(abs(x - y) / abs(x) for x, y in zip(a, b, strict=True))
    within = f"at most {bound}" + (f" and at least {least}" if float(least) > 0 else "")
    print(f"largest relative difference {worst:.1e} over {len(a)} steps (expected {within})")
    return 0 if float(least) <= worst <= float(bound) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
