"""A model's buffers in a checkpoint: tensors of one of its safetensors files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import overwrite
from zerorun.model.dtypes import SAFETENSORS_DTYPES, SAFETENSORS_NAMES
from zerorun.model.units import plain_name

# (name, dtype as safetensors spells it, shape, bytes)
Saved = list[tuple[str, str, list[int], torch.Tensor]]


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
        if (
            value.layout is not torch.strided
            or value.dtype not in SAFETENSORS_NAMES
            or value.is_meta
        ):
            raise _C.ConfigError(
                f"save_checkpoint: the buffer {name} is {value.layout} of {value.dtype}, which "
                "safetensors has no form for: keep it in another dtype, or register it with "
                "persistent=False"
            )
        flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)
        saved.append((name, SAFETENSORS_NAMES[value.dtype], list(value.shape), data))
    return saved


def read(saved: _C.SavedModel) -> dict[str, torch.Tensor]:
    """The buffers of a checkpoint by name, on the CPU. Raises CheckpointError."""
    buffers = {}
    for index, (name, dtype, shape) in enumerate(saved.buffers):
        if dtype not in SAFETENSORS_DTYPES:
            raise _C.CheckpointError(f"the buffer {name} is of {dtype}, which torch does not have")
        value = torch.empty(shape, dtype=SAFETENSORS_DTYPES[dtype])
        flat = value.reshape(-1)
        data = flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)
        saved.read_buffer(index, data)
        buffers[name] = value
    return buffers


def check(model: nn.Module, saved: dict[str, torch.Tensor], folder: str) -> None:
    """Raises CheckpointError unless the model has the saved buffers, in their shapes and in dtypes
    that can hold their values."""
    present = dict(of(model))
    any_length = of_any_length(model)
    for name, value in saved.items():
        if name not in present or name.startswith(any_length):
            continue
        own = present[name]
        if own.shape != value.shape:
            raise _C.CheckpointError(
                f"{folder}: the buffer {name} has shape {tuple(value.shape)}, in this model "
                f"{tuple(own.shape)}; load_module_strict=False leaves it as it is"
            )
        if not _can_hold(own, value):
            raise _C.CheckpointError(
                f"{folder}: the buffer {name} is {value.dtype}, in this model {own.dtype}, which "
                "cannot hold such values; load_module_strict=False leaves it as it is"
            )
    for name in sorted(present.keys() ^ saved.keys()):
        has, lacks = ("checkpoint", "model") if name in saved else ("model", "checkpoint")
        raise _C.CheckpointError(
            f"{folder}: the {has} has the buffer {name}, the {lacks} not; load_module_strict=False "
            "loads the others"
        )


def _can_hold(own: torch.Tensor, value: torch.Tensor) -> bool:
    """False where complex numbers would become real ones, or fractions whole numbers."""
    if own.dtype == torch.bool:
        return not (value.is_floating_point() or value.is_complex())
    return torch.can_cast(value.dtype, own.dtype)


def of_any_length(model: nn.Module) -> tuple[str, ...]:
    """How the names of buffers begin that may have another length than the model's own: there are
    texts among what the bytes of packed weights mean."""
    return tuple(f"{name}." for name, _ in _packed(model))


def restore(model: nn.Module, saved: dict[str, torch.Tensor]) -> None:
    """Gives the model's buffers the saved values, where name and shape are the same."""
    present = {plain_name(name): value for name, value in model.named_buffers()}
    for name, value in saved.items():
        own = present.get(name)
        if own is not None and own.shape == value.shape and _can_hold(own, value):
            overwrite(own, value)
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
