"""Writing a folder of torch.distributed.checkpoint, from which FSDP2's programs go on."""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

import torch

from zerorun import _C
from zerorun.interchange.source import Source, SourceParameter

_MODEL, _OPTIMIZER = "model", "optim"


def write_distributed(source: Source, folder: str | os.PathLike[str]) -> None:
    """Writes ``{"model": ..., "optim": ...}`` as get_state_dict names it, a tensor at a time.

    Without optimizer states only the model. Parameters are in fp32, from the masters, for
    ``dcp.load`` converts to what the program has. Raises CheckpointError, IoError.
    """
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")  # takes a second

    values: dict[str, tuple[SourceParameter, str | None]] = {}
    state: dict[str, Any] = {_MODEL: _model(source, values)}
    if source.param_groups is not None:
        state[_OPTIMIZER] = _optimizer(source, values)

    class Planner(dcp.DefaultSavePlanner):  # type: ignore[misc]
        """Reads a tensor when it is written."""

        def lookup_object(self, index: Any) -> Any:
            found = super().lookup_object(index)
            if not (isinstance(found, torch.Tensor) and found.is_meta):
                return found
            parameter, name = values[index.fqn]
            flat = torch.empty(parameter.numel, dtype=found.dtype)
            parameter.read(name, 0, flat)
            return flat.view(parameter.shape)

    try:
        writer = dcp.FileSystemWriter(os.fspath(folder), single_file_per_rank=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells that there is one process
            dcp.save(state, storage_writer=writer, planner=Planner(), no_dist=True)
    except OSError as error:
        raise _C.IoError(f"{os.fspath(folder)}: {error}") from error


def _model(source: Source, values: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Names with the placeholders of their tensors."""
    model: dict[str, torch.Tensor] = dict(source.buffers)
    names = {name: name for name in source.parameters} | source.aliases
    for name, owner in names.items():
        parameter = source.parameters.get(owner)
        if parameter is not None:
            model[name] = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
            values[f"{_MODEL}.{name}"] = (parameter, None)
    return model


def _optimizer(source: Source, values: dict[str, Any]) -> dict[str, Any]:
    states: dict[str, Any] = {}
    groups = [dict(group) | {"params": []} for group in source.param_groups or []]
    for name, parameter in source.parameters.items():
        if not parameter.trained:
            continue
        groups[parameter.group]["params"].append(name)
        states[name] = {
            key: value if isinstance(value, torch.Tensor) else torch.tensor(float(value))
            for key, value in parameter.numbers.items()
        }
        for key in parameter.states:
            states[name][key] = torch.empty(parameter.shape, device="meta")
            values[f"{_OPTIMIZER}.state.{name}.{key}"] = (parameter, key)
    return {"state": states, "param_groups": groups}
