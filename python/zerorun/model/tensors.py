"""A parameter's tensor: this rank's, or its piece of torch's DTensor; and dtypes."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from zerorun import _C, torch_seam

_EMPTY = torch.Size([0])


def is_distributed(tensor: Any) -> bool:
    """True for a DTensor."""
    module: Any = sys.modules.get(torch_seam.DTENSORS)
    return module is not None and isinstance(tensor, module.DTensor)


def local_of(tensor: Any) -> torch.Tensor:
    """The memory that this rank has of it, without autograd's part."""
    return tensor._local_tensor if is_distributed(tensor) else tensor.detach()


def is_empty(parameter: Any) -> bool:
    """True where this rank has nothing of a parameter that is full at times."""
    return parameter.shape == _EMPTY or (
        is_distributed(parameter) and local_of(parameter).shape == _EMPTY
    )


def place(parameter: Any, values: torch.Tensor) -> None:
    """Makes `values` the parameter's memory."""
    if is_distributed(parameter):
        # `.data` of a DTensor is made anew at each look.
        parameter._local_tensor = values
    else:
        parameter.data = values


def mode_of(parameters: Iterable[torch.Tensor]) -> torch.inference_mode:
    """The mode that they were made in: memory that inference mode has made is for none but those
    that it has made, too."""
    return torch.inference_mode(any(parameter.is_inference() for parameter in parameters))


class LocalData:
    """Stands for a DTensor where code assigns to ``.data``: this rank's piece takes its place."""

    def __init__(self, parameter: Any) -> None:
        self._parameter = parameter

    @property
    def data(self) -> torch.Tensor:
        return self._parameter._local_tensor

    @data.setter
    def data(self, values: torch.Tensor) -> None:
        self._parameter._local_tensor = values

    def data_ptr(self) -> int:
        return self.data.data_ptr()


def whole_of(tensor: Any) -> torch.Tensor:
    """All of it: of a DTensor the pieces together, which is collective among its ranks."""
    return tensor.detach().full_tensor() if is_distributed(tensor) else tensor.detach()


def like(tensor: Any, local: torch.Tensor) -> torch.Tensor:
    """`local` as a DTensor like `tensor`, if that is one."""
    if not is_distributed(tensor):
        return local
    return type(tensor).from_local(
        local,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def local_gradient(parameter: Any) -> torch.Tensor | None:
    """This rank's piece of `.grad`, placed like the parameter. Among the ranks of a DTensor that
    is collective where autograd has left it placed otherwise (a sum to be made)."""
    gradient: Any = parameter.grad
    if gradient is None or not is_distributed(parameter):
        return gradient
    if not is_distributed(gradient):
        raise _C.ConfigError(
            f"a DTensor parameter of shape {tuple(parameter.shape)} has a .grad that is none"
        )
    if gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
    local = gradient._local_tensor
    return local.wait() if hasattr(local, "wait") else local


def is_replica(tensor: Any) -> bool:
    """True if a DTensor's piece here is a copy of one that the first rank of a dimension of its
    mesh has."""
    coordinate = tensor.device_mesh.get_coordinate()
    return any(
        placement.is_replicate() and at > 0
        for placement, at in zip(tensor.placements, coordinate, strict=True)
    )


def is_divided(tensor: Any) -> bool:
    """True for a DTensor of which this rank has a part."""
    return is_distributed(tensor) and any(
        placement.is_shard() and size > 1
        for placement, size in zip(tensor.placements, tensor.device_mesh.shape, strict=True)
    )


def mesh_ranks_of(tensor: Any) -> set[int] | None:
    """The ranks that have a piece of a DTensor; None for other tensors."""
    return set(tensor.device_mesh.mesh.flatten().tolist()) if is_distributed(tensor) else None


def check_placements(name: str, parameter: nn.Parameter) -> None:
    """Raises ConfigError for a DTensor whose pieces have no values of their own."""
    if not is_distributed(parameter):
        return
    placements: Any = getattr(parameter, "placements", ())
    if any(placement.is_partial() for placement in placements):
        raise _C.ConfigError(
            f"parameter {name} is a DTensor placed {tuple(placements)}, of which each rank has an "
            "addend: expected Shard or Replicate in each dimension"
        )
    if parameter.device_mesh.get_coordinate() is None:  # type: ignore[attr-defined]
        raise _C.ConfigError(f"parameter {name} is a DTensor of which this rank has no piece")


class LocalHook:
    """Hands this rank's piece of a DTensor's gradient to a hook that looks for it in ``.grad``."""

    def __init__(self, hook: Callable[[Any], None]) -> None:
        self._hook = hook
        self.grad: torch.Tensor | None = None

    def __call__(self, parameter: Any) -> None:
        local = local_gradient(parameter)
        self.grad = None if local is None else local.contiguous()
        self._hook(self)
        parameter.grad = None


# --- dtypes: the core's, frozen parameters in others, and how safetensors files spell them ---

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
