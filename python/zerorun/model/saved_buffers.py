"""A model's buffers in a checkpoint: tensors of one of its safetensors files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.model.plain_names import plain_name

__all__ = ["check", "of", "of_any_length", "read", "restore", "values"]

# (name, dtype as safetensors spells it, shape, bytes)
Saved = list[tuple[str, str, list[int], torch.Tensor]]

_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers that belong to the model's state dict."""
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            yield plain_name(name), value


def values(model: nn.Module) -> Saved:
    """The buffers for _C.save_checkpoint. Raises ConfigError for one that safetensors has no form
    for."""
    saved = []
    for name, value in of(model):
        if value.layout is not torch.strided or value.dtype not in _NAMES or value.is_meta:
            raise _C.ConfigError(
                f"save_checkpoint: the buffer {name} is {value.layout} of {value.dtype}, which "
                "safetensors has no form for: keep it in another dtype, or register it with "
                "persistent=False"
            )
        flat = value.detach().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)
        saved.append((name, _NAMES[value.dtype], list(value.shape), data))
    return saved


def read(saved: _C.SavedModel) -> dict[str, torch.Tensor]:
    """The buffers of a checkpoint by name, on the CPU. Raises CheckpointError."""
    buffers = {}
    for index, (name, dtype, shape) in enumerate(saved.buffers):
        if dtype not in _DTYPES:
            raise _C.CheckpointError(f"the buffer {name} is of {dtype}, which torch does not have")
        value = torch.empty(shape, dtype=_DTYPES[dtype])
        flat = value.reshape(-1)
        data = flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)
        saved.read_buffer(index, data)
        buffers[name] = value
    return buffers


def check(model: nn.Module, saved: dict[str, torch.Tensor], folder: str) -> None:
    """Raises CheckpointError unless the model has the saved buffers, in their shapes."""
    present = {name: value.shape for name, value in of(model)}
    any_length = of_any_length(model)
    for name, value in saved.items():
        if name in present and present[name] != value.shape and not name.startswith(any_length):
            raise _C.CheckpointError(
                f"{folder}: the buffer {name} has shape {tuple(value.shape)}, in this model "
                f"{tuple(present[name])}; load_module_strict=False leaves it as it is"
            )
    for name in sorted(present.keys() ^ saved.keys()):
        has, lacks = ("checkpoint", "model") if name in saved else ("model", "checkpoint")
        raise _C.CheckpointError(
            f"{folder}: the {has} has the buffer {name}, the {lacks} not; load_module_strict=False "
            "loads the others"
        )


def of_any_length(model: nn.Module) -> tuple[str, ...]:
    """How the names of buffers begin that may have another length than the model's own: there are
    texts among what the bytes of packed weights mean."""
    return tuple(f"{name}." for name, _ in _packed(model))


def restore(model: nn.Module, saved: dict[str, torch.Tensor]) -> None:
    """Gives the model's buffers the saved values, where name and shape are the same."""
    present = {plain_name(name): value for name, value in model.named_buffers()}
    for name, value in saved.items():
        if name in present and present[name].shape == value.shape:
            present[name].detach().copy_(value)
    for name, parameter in _packed(model):
        parts = {key: value for key, value in saved.items() if key.startswith(f"{name}.")}
        if parts:
            _restore_packed(parameter, {key[len(name) + 1 :]: v for key, v in parts.items()})


def _packed(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """bitsandbytes' 4-bit weights: what their bytes mean is among what their layers save."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if hasattr(getattr(parameter, "quant_state", None), "from_dict"):
            yield plain_name(name), parameter


def _restore_packed(parameter: Any, parts: dict[str, torch.Tensor]) -> None:
    parameter.quant_state = type(parameter.quant_state).from_dict(parts, parameter.device)
    if getattr(parameter, "module", None) is not None:  # the layer, which knows it too
        parameter.module.quant_state = parameter.quant_state
