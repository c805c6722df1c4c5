"""A model's buffers: their dtype, rank 0's values on all ranks, and their form in checkpoints."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import overwrite, share
from zerorun.config import ParsedConfig, given_values
from zerorun.experts import is_expert
from zerorun.model.model_layout import DTYPES
from zerorun.model.tensors import SAFETENSORS_DTYPES, SAFETENSORS_NAMES
from zerorun.model.units import plain_name

_MIXED = ("same dtype", "expected scalar type", "same type")  # in torch's errors


def cast_buffers(model: nn.Module, parsed: ParsedConfig, param_dtype: str) -> None:
    """Applies ``data_types.buffer_dtype`` and ``keep_in_fp32_modules``; other buffers keep theirs.

    As in DeepSpeed, 16-bit training makes those buffers fp32 that the configuration's patterns
    match, or by default those that a Hugging Face model names itself: a routing bias, say, whose
    values are too close to each other for 16 bits.
    """
    given = given_values(parsed, "data_types")
    patterns = given.get("keep_in_fp32_modules", "auto")
    kept: list[str] = []
    if param_dtype != "fp32" and patterns == "auto":
        kept = [*_patterns_of(model, param_dtype)]
    elif param_dtype != "fp32":
        kept = [patterns] if isinstance(patterns, str) else patterns
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


# --- in checkpoints, where they are tensors of a safetensors file ---

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
        data = flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)
        saved.append((name, SAFETENSORS_NAMES[value.dtype], list(value.shape), data))
    return saved


def read(saved: _C.SavedModel) -> dict[str, torch.Tensor]:
    """The buffers of a checkpoint by name, on the CPU. Raises CheckpointError."""
    buffers = {}
    for index, (name, dtype, shape) in enumerate(saved.buffers):
        if dtype not in SAFETENSORS_DTYPES:
            raise _C.CheckpointError(f"the buffer {name} is of {dtype}, which torch does not have")
        value = torch.empty(shape, dtype=SAFETENSORS_DTYPES[dtype], device="cpu")
        flat = value.reshape(-1)
        data = flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)
        saved.read_buffer(index, data)
        buffers[plain_name(name)] = value
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
            given = {key[len(name) + 1 :]: value for key, value in parts.items()}
            parameter.quant_state = type(parameter.quant_state).from_dict(given, parameter.device)
            if getattr(parameter, "module", None) is not None:  # the layer, which knows it too
                parameter.module.quant_state = parameter.quant_state


def _packed(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """bitsandbytes' 4-bit weights: what their bytes mean is among what their layers save."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if hasattr(getattr(parameter, "quant_state", None), "from_dict"):
            yield plain_name(name), parameter
