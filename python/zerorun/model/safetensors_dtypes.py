"""The names that safetensors files have for torch's dtypes."""

from __future__ import annotations

import torch

_SPELLED = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",  # not in every version of torch
    "C64": "complex64",
}
DTYPES = {name: getattr(torch, dtype) for name, dtype in _SPELLED.items() if hasattr(torch, dtype)}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
