"""A model's buffers: their dtype, and rank 0's values on all ranks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import torch
from torch import nn

from zerorun import _C
from zerorun.config import ParsedConfig
from zerorun.model_layout import DTYPES

__all__ = ["cast_buffers", "share", "share_buffers"]

_DTYPE_NAMES = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
} | DTYPES


def cast_buffers(model: nn.Module, parsed: ParsedConfig, param_dtype: str) -> None:
    """Applies ``data_types.buffer_dtype`` and ``keep_in_fp32_modules``; other buffers keep theirs.

    As in DeepSpeed, 16-bit training makes those buffers fp32 that the configuration's patterns
    match, or by default those that a Hugging Face model names itself: a routing bias, say, whose
    values are too close to each other for 16 bits.
    """
    given = {value.pointer: value.value for value in parsed.values if value.is_given}
    wanted = json.loads(given.get("/data_types/buffer_dtype", "null"))
    patterns = json.loads(given.get("/data_types/keep_in_fp32_modules", '"auto"'))
    kept = []
    if param_dtype != "fp32":
        kept = [*_patterns_of(model, param_dtype)] if patterns == "auto" else _as_list(patterns)
    pattern = re.compile("|".join(text.replace("*", ".*") for text in kept)) if kept else None
    dtype = (
        None if wanted in (None, "auto") else _DTYPE_NAMES[wanted.lower().removeprefix("torch.")]
    )
    for name, buffer in model.named_buffers():
        if buffer.dtype not in DTYPES.values():
            continue
        target = torch.float32 if pattern is not None and pattern.search(name) else dtype
        if target is not None and buffer.dtype != target:
            buffer.data = buffer.data.to(target)  # modules that share the buffer go on sharing it


def _as_list(patterns: str | list[str]) -> list[str]:
    return [patterns] if isinstance(patterns, str) else patterns


def _patterns_of(model: nn.Module, param_dtype: str) -> Iterator[str]:
    """What the modules' own attributes say, which Hugging Face's models have."""
    for name, module in model.named_modules():
        names = set(getattr(module, "_keep_in_fp32_modules_strict", None) or ())
        if param_dtype == "fp16":
            names |= set(getattr(module, "_keep_in_fp32_modules", None) or ())
        for text in sorted(names):
            yield rf"^{re.escape(name)}\..*{text}" if name else text


def share_buffers(model: nn.Module, communicator: _C.Communicator) -> None:
    """Gives floating-point buffers rank 0's values. Collective."""
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            share(buffer, communicator, f"initial values of buffer {name}")


def share(tensor: torch.Tensor, communicator: _C.Communicator, label: str) -> None:
    """Overwrites a tensor of any dtype with rank 0's values, byte by byte. Collective."""
    if communicator.world_size == 1 or tensor.is_meta or tensor.numel() == 0:
        return
    values = tensor.detach().contiguous().flatten()
    communicator.broadcast(values.view(torch.uint8), 0, label)
    tensor.detach().copy_(values.view_as(tensor))
