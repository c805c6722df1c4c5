"""The logger of DeepSpeed scripts."""

import functools
import json
import logging
import sys
from collections.abc import Iterable
from typing import Any

from zerorun import environment

logger = logging.getLogger("DeepSpeed")
if not logger.handlers:
    _handler = logging.StreamHandler(sys.stderr)
    _handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] %(message)s"))
    logger.addHandler(_handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False

log_levels = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


def _is_chosen(ranks: Iterable[int] | None) -> bool:
    """All ranks where `ranks` holds -1; where it is empty all before there is a process group, and
    none afterwards."""
    from deepspeed.comm import is_initialized

    chosen = list(ranks or [])
    return -1 in chosen or environment.rank() in chosen or not (chosen or is_initialized())


def get_dist_msg(message: Any, ranks: Iterable[int] | None = None) -> str | None:
    """The message with this rank's number; None on ranks that were not chosen."""
    return f"[Rank {environment.rank()}] {message}" if _is_chosen(ranks) else None


def log_dist(message: Any, ranks: Iterable[int] | None = None, level: int = logging.INFO) -> None:
    """Logs on `ranks` only; on all where it holds -1."""
    text = get_dist_msg(message, ranks)
    if text is not None:
        logger.log(level, "%s", text)


def print_dist(message: Any, ranks: Iterable[int] | None = None) -> None:
    """As log_dist, whatever the level."""
    text = get_dist_msg(message, ranks)
    if text is not None:
        print(text)


@functools.cache
def _log_once(message: Any, ranks: tuple[int, ...], level: int) -> None:
    log_dist(message, ranks, level)


def log_dist_once(
    message: Any, ranks: Iterable[int] | None = None, level: int = logging.INFO
) -> None:
    _log_once(message, tuple(ranks or ()), level)


@functools.cache
def warning_once(*args: Any, **kwargs: Any) -> None:
    logger.warning(*args, **kwargs)


# Programs also call them as methods.
logger.warning_once, logger.log_dist_once = warning_once, log_dist_once  # type: ignore[attr-defined]


def print_json_dist(message: dict[str, Any], ranks: Iterable[int] | None, path: str) -> None:
    """Writes the message and the rank as JSON; `ranks` as in log_dist."""
    if _is_chosen(ranks):
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**message, "rank": environment.rank()}, file)


def print_rank_0(message: str, debug: bool = False, force: bool = False) -> None:
    if force and environment.rank() == 0:
        logger.warning(message)


def print_configuration(args: Any, name: str) -> None:
    logger.info("%s:", name)
    for key, value in sorted(vars(args).items()):
        logger.info("  %s = %s", key, value)


def get_log_level_from_string(log_level_str: str) -> int:
    level = log_levels.get(log_level_str.lower())
    if level is None:
        raise ValueError(f"log level: got {log_level_str!r}, expected {', '.join(log_levels)}")
    return level


def set_log_level_from_string(
    log_level_str: str, custom_logger: logging.Logger | None = None
) -> None:
    """Sets the level of DeepSpeed's logger, or of another one, and of its handlers."""
    target = custom_logger or logger
    level = get_log_level_from_string(log_level_str)
    for each in (target, *target.handlers):
        each.setLevel(level)


def get_current_level() -> int:
    return logger.getEffectiveLevel()


def should_log_le(max_log_level_str: str) -> bool:
    """True if the level is at most this one, so that its messages are shown."""
    return get_current_level() <= get_log_level_from_string(max_log_level_str)
