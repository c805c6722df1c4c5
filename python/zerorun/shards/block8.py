"""Optimizer states in 8 bits, as the values of their codes, which device/block8.h defines."""

from __future__ import annotations

import torch

BLOCK = 256  # elements that share a scale
_SHIFT = 20  # of a float's bits, to those that a code keeps
_LEAST_SCALE = 2.0**-94  # a block with a smaller one is zero


def _offset(signed: bool) -> int:
    return 1016 - (127 if signed else 255)


def _per_element(scales: torch.Tensor, numel: int) -> torch.Tensor:
    return scales.repeat_interleave(BLOCK)[:numel]


def decode(codes: torch.Tensor, scales: torch.Tensor, signed: bool) -> torch.Tensor:
    """The fp32 values of uint8 `codes` (flat), which have one of `scales` per block."""
    whole = codes.to(torch.int32)
    magnitude = whole & 127 if signed else whole
    relative = ((magnitude + _offset(signed)) << _SHIFT).view(torch.float32)
    relative = torch.where(magnitude == 0, 0.0, relative)
    if signed:
        relative = torch.where(whole >= 128, -relative, relative)
    return relative * _per_element(scales, codes.numel())


def encode(values: torch.Tensor, signed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes and scales of fp32 `values` (flat); the reverse of decode() up to rounding."""
    padding = -values.numel() % BLOCK
    blocks = torch.nn.functional.pad(values, (0, padding)).view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1)
    scales = torch.where(scales < _LEAST_SCALE, 0.0, scales)
    scale = _per_element(scales, values.numel())
    bits = (values.abs() * (1.0 / scale)).view(torch.int32)
    rounded = (bits + (1 << (_SHIFT - 1))) >> _SHIFT  # to nearest; a tie away from zero
    codes = (rounded - _offset(signed)).clamp(0 if signed else 1, 127 if signed else 255)
    codes = torch.where((scale == 0) | (values == 0), 0, codes)
    if signed:
        codes = torch.where(torch.signbit(values) & (codes > 0), codes | 128, codes)
    largest = 127 if signed else 255
    codes = torch.where(torch.isfinite(scale), codes, largest)
    return codes.to(torch.uint8), scales
