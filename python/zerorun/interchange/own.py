"""zerorun's own checkpoints, read without an engine as other programs' are."""

import functools
import json
import math
import os
from typing import Any

import torch

from zerorun import _C, program_state
from zerorun.interchange.source import Piece, Source, SourceParameter
from zerorun.model import buffers as saved_buffers
from zerorun.model.dtypes import CORE_DTYPES, stored_shape
from zerorun.optimizers.saved_values import DECOUPLED


def optimizer_of(
    directory: str | os.PathLike[str], tag: str | None = None
) -> tuple[str | None, bool | None]:
    """The name of the optimizer whose states a checkpoint has, and whether its weight decay is
    decoupled, if that is said. Raises CheckpointError."""
    saved = _C.SavedModel(os.fspath(directory), tag or "")
    data = program_state.decode(saved.client_state)
    name = None if data.get("model_only") is True else data.get("optimizer")
    objects = program_state.decode_objects(saved.client_state, allow_pickle=False)
    groups = objects.get("param_groups") or [{}]
    return name, groups[0].get(DECOUPLED)


def exact_dtypes_of(data: dict[str, Any], where: str) -> dict[str, torch.dtype]:
    """The dtypes of parameters that the core's dtype does not say. Raises CheckpointError."""
    dtypes = data.get("exact_dtypes") or {}
    if isinstance(dtypes, dict) and all(isinstance(v, torch.dtype) for v in dtypes.values()):
        return dtypes
    raise _C.CheckpointError(f"{where}: 'exact_dtypes' are no dtypes by name")


def open_own(directory: str | os.PathLike[str], tag: str | None = None) -> Source:
    """Describes a checkpoint's values and buffers; its optimizer states are an engine's to load.

    Raises CheckpointError.
    """
    saved = _C.SavedModel(os.fspath(directory), tag or "")
    data = program_state.decode(saved.client_state)
    folder = os.path.join(os.fspath(directory), saved.tag)
    if not os.path.isdir(folder):  # `directory` is one tag's
        folder = os.fspath(directory)
    source = Source(folder, "a zerorun checkpoint")
    source.buffers = saved_buffers.read(saved)
    source.global_steps = data.get("counters", {}).get("global_steps", saved.step)

    @functools.lru_cache(maxsize=1)  # a parameter is read piece by piece
    def values(index: int, dtype: torch.dtype) -> torch.Tensor:
        parameter = saved.parameters[index]
        flat = torch.empty(math.prod(parameter.shape), dtype=CORE_DTYPES[parameter.dtype])
        saved.read(index, flat)
        return flat.view(dtype)

    exact_dtypes = exact_dtypes_of(data, folder)

    # The table of a checkpoint that SavedModel has found to be in order.
    with open(os.path.join(source.path, "checkpoint.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    table = {entry["name"]: entry for entry in manifest["parameters"]}
    trained = [table[p.name]["dtype"] for p in saved.parameters if p.trainable and not p.alias_of]
    source.dtype = trained[0] if trained else None
    source.param_groups = [{} for _ in manifest["groups"]]
    for index, parameter in enumerate(saved.parameters):
        if parameter.alias_of:
            source.aliases[parameter.name] = parameter.alias_of
        elif parameter.saved:
            shape, dtype = tuple(parameter.shape), CORE_DTYPES[parameter.dtype]
            exact = exact_dtypes.get(parameter.name)
            if exact is not None:
                shape, dtype = _seen_as(shape, dtype, exact, f"{folder}: {parameter.name}"), exact
            piece = Piece(0, math.prod(shape), functools.partial(values, index, dtype))
            made = SourceParameter(shape, [piece], dtype, parameter.trainable)
            made.exact = exact is not None
            made.group = table[parameter.name].get("group", 0)
            source.parameters[parameter.name] = made
    return source


def _seen_as(
    shape: tuple[int, ...], stored: torch.dtype, dtype: torch.dtype, where: str
) -> tuple[int, ...]:
    """The shape of a parameter whose bytes are of another dtype than the core's. Raises
    CheckpointError."""
    if stored_shape(torch.Size(shape), dtype) == list(shape) and stored.itemsize == dtype.itemsize:
        return shape
    if stored == torch.uint8 and stored_shape(torch.Size(shape[:-1]), dtype) == list(shape):
        return shape[:-1]
    raise _C.CheckpointError(f"{where}: {stored} of shape {shape} is not what {dtype} is saved as")
