"""A model's buffers: their dtype, and rank 0's values on all ranks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import share
from zerorun.config import ParsedConfig, given_values
from zerorun.experts import is_expert
from zerorun.model.model_layout import DTYPES

_MIXED = ("same dtype", "expected scalar type", "same type")  # in torch's errors


def cast_buffers(model: nn.Module, parsed: ParsedConfig, param_dtype: str) -> None:
    """Applies ``data_types.buffer_dtype`` and ``keep_in_fp32_modules``; other buffers keep theirs.

    As in DeepSpeed, 16-bit training makes those buffers fp32 that the configuration's patterns
    match, or by default those that a Hugging Face model names itself: a routing bias, say, whose
    values are too close to each other for 16 bits.
    """
    given = given_values(parsed, "data_types")
    patterns = given.get("keep_in_fp32_modules", "auto")
    kept = []
    if param_dtype != "fp32":
        kept = [*_patterns_of(model, param_dtype)] if patterns == "auto" else _as_list(patterns)
    pattern = re.compile("|".join(text.replace("*", ".*") for text in kept)) if kept else None
    dtype = _dtype_of(given.get("buffer_dtype"))
    for name, buffer in model.named_buffers():
        if buffer.dtype not in DTYPES.values():
            continue
        target = torch.float32 if pattern is not None and pattern.search(name) else dtype
        if target is not None and buffer.dtype != target:
            buffer.data = buffer.data.to(target)  # modules that share the buffer go on sharing it


@contextlib.contextmanager
def hint_at_buffers(model: nn.Module) -> Iterator[None]:
    """Says in torch's errors about unequal dtypes which buffers are wider than the parameters."""
    try:
        yield
    except RuntimeError as error:
        if hint := _wide_buffers(model) if any(text in str(error) for text in _MIXED) else "":
            error.args = (f"{error}\n{hint}",)
        raise


def _wide_buffers(model: nn.Module) -> str:
    halves = {p.dtype for p in model.parameters()} & {torch.bfloat16, torch.float16}
    wide = [name for name, buffer in model.named_buffers() if buffer.dtype == torch.float32]
    if not halves or not wide:
        return ""
    half = next(name for name, dtype in DTYPES.items() if dtype in halves)
    more = f" and {len(wide) - 3} more" if len(wide) > 3 else ""
    key = f'{{"data_types": {{"buffer_dtype": "{half}"}}}}'
    return (
        f"zerorun casts no buffers: {', '.join(wide[:3])}{more} stay fp32 beside {half} "
        f"parameters, and what is computed with them is fp32. {key} in the configuration casts them"
    )


def _dtype_of(name: str | None) -> torch.dtype | None:
    """The dtype of a name that the configuration's reader has checked: zerorun's or torch's."""
    if name is None or name == "auto":
        return None
    plain = name.lower().removeprefix("torch.")
    return DTYPES.get(plain) or getattr(torch, plain)


def _as_list(patterns: str | list[str]) -> list[str]:
    return [patterns] if isinstance(patterns, str) else patterns


def _patterns_of(model: nn.Module, param_dtype: str) -> Iterator[str]:
    """The names in the modules' own attributes, which Hugging Face's models have."""
    for name, module in model.named_modules():
        names = set(getattr(module, "_keep_in_fp32_modules_strict", None) or ())
        if param_dtype == "fp16":
            names |= set(getattr(module, "_keep_in_fp32_modules", None) or ())
        for text in sorted(names):
            yield rf"^{re.escape(name)}\..*{text}" if name else text


def share_buffers(model: nn.Module, communicator: _C.Communicator) -> None:
    """Gives floating-point buffers rank 0's values, but for those of experts. Collective."""
    own = {
        id(buffer)
        for module in model.modules()
        if any(map(is_expert, module.parameters(recurse=False)))
        for buffer in module.buffers()
    }
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point() and id(buffer) not in own:
            share(buffer, communicator, f"initial values of buffer {name}")
