"""Lines about the training that a configuration asks for."""

from __future__ import annotations

import logging
import sys


def announce(line: str) -> None:
    """Through the logger `zerorun` where somebody listens to it, else on the error stream."""
    logger = logging.getLogger("zerorun")
    if logger.hasHandlers() and logger.isEnabledFor(logging.INFO):
        logger.info("%s", line)
    else:
        print(f"[zerorun] {line}", file=sys.stderr, flush=True)
