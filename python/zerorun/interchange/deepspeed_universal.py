"""DeepSpeed's universal format: a folder per parameter, as ds_to_universal writes it."""

from __future__ import annotations

import os

import torch

from zerorun import _C
from zerorun.interchange import pickles
from zerorun.interchange.deepspeed_model import ModelStates, scaler_of
from zerorun.interchange.source import Piece, SavedPart, Source, SourceParameter

_FOLDER = "zero"
_VALUES = "fp32.pt"
_COMMON = "optimizer_state.pt"


def is_universal(folder: str) -> bool:
    return os.path.isdir(os.path.join(folder, _FOLDER))


def open_universal(folder: str, *, optimizer_states: bool = True) -> Source:
    """Describes the checkpoint in `folder`. Raises CheckpointError."""
    model = ModelStates(folder)
    source = Source(folder, "a DeepSpeed checkpoint in the universal format")
    model.describe(source)
    root = os.path.join(folder, _FOLDER)
    others = source.aliases.keys() | source.buffers.keys()
    for path, _, names in os.walk(root):
        name = os.path.relpath(path, root)
        if _VALUES in names and name not in others:
            files = [file for file in sorted(names) if file.endswith(".pt")]
            source.parameters[name] = _parameter(source, path, files, optimizer_states)
    shapes = {name: shape for group in model.param_shapes for name, shape in group.items()}
    groups = {name: number for number, group in enumerate(model.param_shapes) for name in group}
    missing = sorted(shapes.keys() - source.parameters.keys())
    if missing:
        raise _C.CheckpointError(
            f"{root}: {missing[0]} and {len(missing) - 1} more parameters have no folder with "
            f"{_VALUES}: the conversion did not end"
        )
    for name, parameter in source.parameters.items():
        parameter.trained, parameter.group = name in shapes, groups.get(name, 0)
        parameter.reshape(shapes.get(name, parameter.shape), os.path.join(root, name))
    stage = 3 if "zero_pp_rank" in os.path.basename(model.path) else 2
    model.add_frozen(source, stage)
    common = os.path.join(root, _COMMON)
    if optimizer_states and os.path.isfile(common):
        _add_common(source, common)
    return source


def _parameter(source: Source, path: str, names: list[str], states: bool) -> SourceParameter:
    made = SourceParameter((), [])
    for name in names:
        file, state = os.path.join(path, name), name.removesuffix(".pt")
        if name != _VALUES and not states:
            continue
        content = pickles.read(file)
        value = content.get("param") if isinstance(content, dict) else content
        source.files.append(SavedPart(file))
        if isinstance(value, torch.Tensor) and value.dim() > 0 and state != "step":
            piece = Piece(0, value.numel(), value, 0, pickles.is_mapped(file))
            if name == _VALUES:
                made.shape, made.dtype, made.values = tuple(value.shape), value.dtype, [piece]
            else:
                made.states[state] = [piece]
        else:
            made.numbers[state] = value
    return made


def _add_common(source: Source, path: str) -> None:
    """Hyperparameters, the loss scale, and at stage 3 the step, which are in one file for all."""
    content = pickles.read(path)
    source.loss_scaler = scaler_of(content.get("loss_scaler"), path)
    groups = content.get("param_groups")
    if isinstance(groups, list):
        source.param_groups = [{k: v for k, v in g.items() if k != "params"} for g in groups]
        if "optimizer_state_dict" in content:  # stage 3 counts the pieces of groups
            group_of = {i: n for n, group in enumerate(groups) for i in group.get("params", ())}
            for parameter in source.parameters.values():
                parameter.group = group_of.get(parameter.group, parameter.group)
    states = content.get("optimizer_state_dict", {}).get("state", {})
    for state in states.values():
        for parameter in source.parameters.values():
            if parameter.states and "step" in state:
                parameter.numbers.setdefault("step", state["step"])
