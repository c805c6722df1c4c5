#!/usr/bin/env python3
"""Writes the safetensors files of this folder with the reference implementation.

Usage: make_safetensors.py [FOLDER]

mixed.safetensors     every dtype that zerorun reads and one it does not
exported.safetensors  what zerorun must write, byte for byte, for the model in
                      safetensors_export_test.cc
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save


def ramp(shape: list[int], start: float, dtype: torch.dtype) -> torch.Tensor:
    """start, start + 0.5, start + 1, ...: exact in every dtype used here."""
    numel = torch.Size(shape).numel()
    return (torch.arange(numel, dtype=torch.float64) * 0.5 + start).reshape(shape).to(dtype)


def mixed() -> bytes:
    return save(
        {
            "fp32": ramp([2, 3], -1, torch.float32),
            "bf16": ramp([5], 1, torch.bfloat16),
            "fp16": ramp([2, 2], 2, torch.float16),
            "int64": torch.tensor([-1, 2**62]),
            "uint8": torch.tensor([0, 7, 255], dtype=torch.uint8),
            "int32": torch.tensor([1], dtype=torch.int32),
            "empty": ramp([0, 4], 0, torch.float32),
            "scalar": ramp([], 3, torch.float32),
        },
        metadata={"format": "pt"},
    )


def exported() -> bytes:
    weight = ramp([3, 5], 10, torch.bfloat16)
    return save(
        {
            "transformer.wte.weight": weight,
            "lm_head.weight": weight.clone(),
            "transformer.h.0.ln.weight": ramp([7], 20, torch.bfloat16),
            "frozen": ramp([11], 30, torch.bfloat16),
            "empty": ramp([0, 4], 40, torch.bfloat16),
            "scale": ramp([], 50, torch.bfloat16),
        },
        metadata={"format": "pt"},
    )


FILES = {"mixed.safetensors": mixed, "exported.safetensors": exported}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, content in FILES.items():
        (folder / name).write_bytes(content())


if __name__ == "__main__":
    main()
