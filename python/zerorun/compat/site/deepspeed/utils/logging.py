"""The logger of DeepSpeed scripts."""

import logging
import os
import sys
from collections.abc import Iterable

logger = logging.getLogger("DeepSpeed")
if not logger.handlers:
    _handler = logging.StreamHandler(sys.stderr)
    _handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] %(message)s"))
    logger.addHandler(_handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False


def log_dist(message: str, ranks: Iterable[int] | None = None, level: int = logging.INFO) -> None:
    """Logs on `ranks` only; on all when it is empty or holds -1."""
    chosen = list(ranks or [])
    rank = int(os.environ.get("RANK", "0"))
    if not chosen or -1 in chosen or rank in chosen:
        logger.log(level, "[Rank %d] %s", rank, message)


def print_rank_0(message: str, debug: bool = False, force: bool = False) -> None:
    if force and int(os.environ.get("RANK", "0")) == 0:
        logger.warning(message)
