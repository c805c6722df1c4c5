"""Continuing from another program's checkpoint, as load_checkpoint does from zerorun's."""

import os
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import all_or_none, on_any_rank
from zerorun.checkpoints.checkpoint import Training, Wanted
from zerorun.interchange import formats
from zerorun.interchange.load_into_engine import Filling
from zerorun.interchange.source import Source
from zerorun.model import buffers as saved_buffers
from zerorun.optimizers.optimizer import ShardOptimizer
from zerorun.optimizers.optimizer_probe import state_names
from zerorun.optimizers.saved_values import DECOUPLED, check_groups, with_own_decay
from zerorun.program_warning import logger
from zerorun.shards.shards import Shards


def load(
    training: Training, directory: str | os.PathLike[str], tag: str | None, wanted: Wanted
) -> tuple[str, dict[str, Any]] | None:
    """As checkpoint.load; None for zerorun's own checkpoints, and where there is none.

    A model without a training (Hugging Face's) starts the optimizer anew, with a warning. A
    checkpoint that is damaged or does not fit is a CheckpointError on every rank, and nothing has
    changed. No code that the files name is run.
    """
    shards = training._shards
    optimizer = training.optimizer if wanted.optimizer_states else None
    with all_or_none(shards.communicator, "load_checkpoint"):
        folder = formats.find(os.fspath(directory), None if tag is None else str(tag))
    if not on_any_rank(folder is not None, shards.communicator, "whose checkpoint it is"):
        return None
    folder = folder or os.fspath(directory)  # open_source() tells that nothing is there
    with all_or_none(shards.communicator, "load_checkpoint"), formats.told(folder):
        source = formats.open_source(folder, optimizer_states=optimizer is not None)
        buffers = _take_buffers(training.module, source)
        if wanted.strict:
            saved_buffers.check(training.module, buffers, folder)
        if source.is_model and optimizer is not None:
            logger.warning("%s is %s: optimizer states begin anew", folder, source.format)
            optimizer = None
        filling = Filling(shards, source, strict=wanted.strict, states=optimizer is not None)
        settings: list[dict[str, Any]] = []
        if optimizer is not None:
            settings = _settings(shards, optimizer, source)
            if shards.external:
                filling.check_states(state_names(optimizer.optimizer, settings))
        schedule = wanted.schedule(training, source.lr_scheduler, folder)
    filling.check_files()
    if optimizer is None and training.optimizer is not None:
        shards.core.reset_optimizer()
    filling.fill()
    saved_buffers.restore(training.module, buffers)
    if optimizer is not None:
        optimizer.load_group_settings(settings)
    if schedule:
        training.lr_scheduler.load_state_dict(schedule)
    if wanted.counters and not source.is_model:
        training.global_steps = source.global_steps
        training.micro_steps = source.global_steps * shards.core.accumulation_steps
    return folder, source.client_state


# Hyperparameters that say nothing of the rule: how torch or DeepSpeed computes it.
_OF_ANY_RULE = {
    *("foreach", "capturable", "differentiable", "fused", "maximize", "amsgrad", "initial_lr"),
    *(DECOUPLED, "step", "bias_correction", "name", "params", "lr", "weight_decay"),
}


def _settings(shards: Shards, optimizer: ShardOptimizer, source: Source) -> list[dict[str, Any]]:
    """The hyperparameters of the groups after the load. Raises CheckpointError for another number
    of groups, or another optimizer, as far as that does not show in its states."""
    own, saved = optimizer.group_settings(), source.param_groups
    if not saved:
        return own
    folder = source.path
    check_groups(saved, folder, external=shards.external, count=len(own))
    if shards.external:
        _check_names(optimizer.optimizer, own, saved, folder)
    else:
        _check_rule(shards.settings.optimizer, saved, folder)
        saved = with_own_decay(saved, source.decoupled, shards.settings.optimizer, folder)
    return [
        group | {key: value for key, value in values.items() if key in group}
        for group, values in zip(own, saved, strict=True)
    ]


def _check_names(
    optimizer: torch.optim.Optimizer,
    own: list[dict[str, Any]],
    saved: list[dict[str, Any]],
    folder: str,
) -> None:
    """An optimizer of torch's takes over all hyperparameters of another one of its kind."""
    names = {key for group in own for key in group} - _OF_ANY_RULE
    others = {key for group in saved for key in group} - _OF_ANY_RULE
    if others and names != others:
        raise _C.CheckpointError(
            f"{folder}: the checkpoint's optimizer has {sorted(others)}, this engine's "
            f"{type(optimizer).__name__} {sorted(names)}; load_optimizer_states=False loads the "
            "model alone"
        )


def _check_rule(rule: _C.OptimizerConfig, saved: list[dict[str, Any]], folder: str) -> None:
    """A rule of the core's computes one thing, whatever hyperparameters say."""
    for name in ("amsgrad", "maximize"):
        if any(group.get(name) for group in saved):
            raise _C.CheckpointError(
                f"{folder}: the checkpoint's optimizer has {name}, which this engine's "
                f"{rule.type} has not: give initialize a torch optimizer with {name}, or "
                "load_optimizer_states=False for the model alone"
            )


def _take_buffers(model: nn.Module, source: Source) -> dict[str, torch.Tensor]:
    """The source's buffers; some formats do not tell them from parameters."""
    any_length = saved_buffers.of_any_length(model)
    for name, own in saved_buffers.of(model):
        found = source.parameters.pop(name, None)
        if found is not None:
            # Another shape is an error or left alone: no memory is taken for what it says.
            fits = found.shape == tuple(own.shape) or name.startswith(any_length)
            source.buffers[name] = found.full() if fits else torch.empty(found.shape, device="meta")
    return source.buffers
