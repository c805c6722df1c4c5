"""Helpers that scripts import."""

import gc
from typing import Any

import torch
from deepspeed.utils.logging import logger


def see_memory_usage(message: str, force: bool = False) -> None:
    """Logs this process's resident memory when `force` is set."""
    if not force:
        return
    gc.collect()
    with open("/proc/self/status", encoding="utf-8") as file:
        resident = next(line.split()[1] for line in file if line.startswith("VmRSS"))
    logger.info("%s: resident memory %.2f GB", message, int(resident) / 2**20)


def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """torch's, for parameters that no engine manages."""
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)


def empty_cache() -> None:
    """Nothing is cached."""
