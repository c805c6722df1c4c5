"""Dtypes: the core's, frozen parameters in others (quantized weights, fp8), which are kept bit by
bit, and how safetensors files spell them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from zerorun.model.local_tensor import is_distributed

CORE_DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
_NAMES = {dtype: name for name, dtype in CORE_DTYPES.items()}


def core_dtype_of(dtype: torch.dtype) -> str:
    """The core's dtype for it; bytes for those that the core does not know."""
    return _NAMES.get(dtype, "uint8")


def is_packed(parameter: Any) -> bool:
    """True for bitsandbytes' 4-bit weights, whose bytes may be in a tensor of any dtype."""
    return bool(getattr(parameter, "bnb_quantized", False))


def is_composed(parameter: Any) -> bool:
    """True for tensors that are made of others, as torchao's quantized weights are."""
    return not is_distributed(parameter) and is_traceable_wrapper_subclass(parameter)


def stays_whole(parameter: Any) -> bool:
    """True for weights that an engine cannot keep: bitsandbytes' 8-bit ones, whose layer holds the
    tensor itself, too, and puts it back into the parameter at every forward, and composed ones."""
    keeps_a_copy = hasattr(parameter, "CB") and hasattr(parameter, "SCB")
    return keeps_a_copy or is_composed(parameter)


def parts_of(tensor: Any) -> Iterator[torch.Tensor]:
    """The tensors that have memory, of which a composed one is made; else itself."""
    if not is_composed(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from parts_of(getattr(tensor, name))


def stored_shape(shape: torch.Size, dtype: torch.dtype) -> list[int]:
    """The shape in the core: bytes of wider elements are a dimension more."""
    wide = core_dtype_of(dtype) == "uint8" and dtype.itemsize > 1
    return [*shape, dtype.itemsize] if wide else list(shape)


def as_bytes(flat: torch.Tensor) -> torch.Tensor:
    """The same memory in a dtype that communicators take."""
    return flat.view(torch.uint8) if core_dtype_of(flat.dtype) == "uint8" else flat


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
SAFETENSORS_DTYPES = {
    name: getattr(torch, dtype) for name, dtype in _SPELLED.items() if hasattr(torch, dtype)
}
SAFETENSORS_NAMES = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}
