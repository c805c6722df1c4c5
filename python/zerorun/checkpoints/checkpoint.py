"""Saving and loading a model in training; docs/checkpoint_format.md specifies the bytes on disk."""

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from zerorun import _C, program_state
from zerorun.agreement import all_or_none, on_any_rank, text_of_rank_zero
from zerorun.checkpoints import shard_files
from zerorun.interchange import untrusted
from zerorun.interchange.load_into_engine import Filling
from zerorun.interchange.source import exact_dtypes_of, open_own
from zerorun.model import buffers as saved_buffers
from zerorun.optimizers import saved_values
from zerorun.optimizers.optimizer import ShardOptimizer
from zerorun.program_warning import logger
from zerorun.shards.shards import Policy, Shards

_LATEST = "latest"
_PICKLE = "pickle_client_state"  # what JSON has no form for is pickled and unpickled


class Training(Protocol):
    """An engine: the parts of its training that its shards do not hold."""

    module: nn.Module
    config: dict[str, Any]  # as the program gave it
    lr_scheduler: Any
    training_dataloader: Any  # whose position is saved and loaded, if the policy says so
    global_steps: int
    micro_steps: int
    _policy: Policy
    _shards: Shards
    _saves_model_only: bool  # a save's optimizer states and hyperparameters mean nothing

    @property
    def optimizer(self) -> ShardOptimizer | None: ...


def _is_on(training: Training, key: str) -> bool:
    section = training.config.get("checkpoint")
    return isinstance(section, dict) and section.get(key) is True


def is_node_local(training: Training) -> bool:
    """True if each host keeps the files of its own ranks."""
    return _is_on(training, "use_node_local_storage")


def _data_loader(training: Training) -> Any:
    return training.training_dataloader if training._policy.resumes_data else None


def _encode(training: Training, data: dict[str, Any], objects: dict[str, Any]) -> str:
    pickles = _is_on(training, _PICKLE) or training._policy.pickles_objects
    text = program_state.encode(data, objects, allow_pickle=pickles)
    unasked = program_state.has_pickle(text) and not _is_on(training, _PICKLE)
    if unasked and training._shards.communicator.rank == 0:
        logger.warning(
            "save_checkpoint: client_state or a schedule has objects that JSON has no form for. "
            'They are pickled; only with "checkpoint": {"pickle_client_state": true} will a load '
            "read them, since that runs the pickle's code"
        )
    return text


def save(  # noqa: PLR0913 - the options of the engine's method
    training: Training,
    directory: str | os.PathLike[str],
    tag: str | None,
    client_state: dict[str, Any] | None,
    *,
    save_latest: bool,
    exclude_frozen: bool,
    blocking: bool,
    part: dict[str, Any] | None = None,
    committed: Callable[[], None] = lambda: None,
) -> str:
    """Collective; returns the tag. An earlier checkpoint stays loadable until this is complete.

    `part`: what part of a model this is. `committed` is called on every rank when it is there.
    Not `blocking`: returns when the states are copied, and `shards.saver` tells the rest. Waits for
    a save before this one. Raises CheckpointError, ConfigError or IoError on every rank."""
    shards = training._shards
    shards.saver.wait()
    shards.take_replaced_states()
    folder, node_local = os.fspath(directory), is_node_local(training)
    name = text_of_rank_zero(tag_of(training, tag), shards.communicator, "tag of the checkpoint")
    data, objects = _data(training, part), _objects(training, client_state)
    with all_or_none(shards.communicator, "save_checkpoint"):
        text = _encode(training, data, objects)
        buffers = saved_buffers.values(training.module)
        # JSON has no infinity: the text of one, as of every other value that it lacks.
        values = json.loads(json.dumps(training.config, default=str), parse_constant=str)
        configuration = json.dumps(values)
    record: shard_files.Record | None = None
    if shards.torch_states is not None:
        record = data["shard_files"] = shard_files.save(shards, folder, name, node_local=node_local)
        text = _encode(training, data, objects)
    keep = (shards.settings.checkpoint.keep_last, shards.settings.checkpoint.keep_every)
    arguments = (
        folder, name, text, exclude_frozen, save_latest, configuration, buffers, keep,
        node_local,
    )  # fmt: skip

    def discard() -> None:
        if record is not None:
            shard_files.discard(shards, folder, record, node_local=node_local)

    def follow_up() -> None:
        if shards.communicator.rank == 0 or node_local:
            with contextlib.suppress(OSError):  # the next save tries again
                shard_files.tidy(folder, name, record)
        committed()

    try:
        if not blocking:
            shards.saver.save(arguments, committed=follow_up, failed=discard)
            return name
        _C.save_checkpoint(shards.core, *arguments)
    except Exception:
        discard()
        raise
    with all_or_none(shards.communicator, "save_checkpoint"):  # nobody returns before it is done
        follow_up()
    return name


def shared_tag(
    training: Training, directory: str | os.PathLike[str], tag: str | None
) -> str | None:
    """The tag of what to load, rank 0's. Collective; where each host keeps its own files, every
    host has the tables of that checkpoint afterwards."""
    shards = training._shards
    given = text_of_rank_zero("" if tag is None else str(tag), shards.communicator, "tag to load")
    tag = given or None
    if not is_node_local(training):
        return tag
    shards.saver.wait()
    folder = os.path.normpath(directory)
    found = _C.share_checkpoint(shards.core, folder, "" if tag is None else str(tag))
    return os.path.basename(found) if found and found != folder else tag


def tag_of(training: Training, tag: str | None) -> str:
    """The given one, or the default."""
    return f"global_step{training.global_steps}" if tag in (None, "") else str(tag)


def _data(training: Training, part: dict[str, Any] | None) -> dict[str, Any]:
    """The package's own part."""
    return {
        "counters": {"global_steps": training.global_steps, "micro_steps": training.micro_steps},
        "optimizer": _optimizer_name(training._shards, training.optimizer),
        "model_only": training._saves_model_only,
        "exact_dtypes": training._shards.layout.exact_dtypes(),
        "data_position": getattr(_data_loader(training), "used", None),
        "part": part,
        "shard_files": None,
    }


def _objects(training: Training, client_state: dict[str, Any] | None) -> dict[str, Any]:
    """The program's part, with values of classes that the package does not choose."""
    optimizer, scheduler = training.optimizer, training.lr_scheduler
    if optimizer is not None:
        optimizer.tell_hyperparameters()  # which no step may have used yet
    return {
        "client_state": client_state or {},
        "param_groups": None if optimizer is None else optimizer.group_settings(),
        "lr_scheduler": scheduler.state_dict() if hasattr(scheduler, "state_dict") else None,
    }


def _optimizer_name(shards: Shards, optimizer: ShardOptimizer | None) -> str | None:
    """A name that two optimizers share when each understands the other's states."""
    if optimizer is None:
        return None
    if shards.external:
        return f"{type(optimizer.optimizer).__name__} of PyTorch"
    rule = shards.settings.optimizer.type
    # Adam and AdamW keep the same states.
    return f"zerorun's {'Adam' if rule == 'AdamW' else rule}"


@dataclass(frozen=True)
class Wanted:
    """What a load takes; `strict`: all that the model has, and no more."""

    strict: bool
    optimizer_states: bool
    lr_scheduler_states: bool
    counters: bool

    def schedule(self, training: Training, saved: Any, where: str) -> Any:
        """The saved state of the schedule if it is to be loaded, which it can be then."""
        scheduler = training.lr_scheduler if self.lr_scheduler_states else None
        if not saved or not hasattr(scheduler, "load_state_dict"):
            return None
        saved_values.check_schedule(scheduler, saved, where)
        return saved


def load(
    training: Training, directory: str | os.PathLike[str], tag: str | None, wanted: Wanted
) -> tuple[str | None, dict[str, Any] | None]:
    """Collective; (path, client_state), or (None, None) when there is no checkpoint.

    Updates the counters of `training` if these are asked for. A checkpoint that is damaged or does
    not fit is a CheckpointError on every rank, and nothing has changed. Unpickles what was pickled
    of the client_state and the scheduler's state only if the configuration allows that.
    """
    shards, folder = training._shards, os.fspath(directory)
    shards.saver.wait()
    there = tag is not None or untrusted.is_there(os.path.join(folder, _LATEST))
    if not on_any_rank(there, shards.communicator, "whether there is a checkpoint"):
        logger.warning("no file '%s' in %s: no checkpoint was loaded", _LATEST, folder)
        return None, None
    optimizer = training.optimizer if wanted.optimizer_states else None
    settings: list[dict[str, Any]] | None = None
    strict = wanted.strict
    with all_or_none(shards.communicator, "load_checkpoint"):
        found = _check(training, folder, "" if tag is None else str(tag), strict=strict)
        _check_exact_dtypes(shards, found.data, folder)
        position = _position(found.data, folder)
        is_model = found.data.get("model_only") is True
        if is_model and optimizer is not None:
            logger.warning("%s has a model alone: optimizer states begin anew", folder)
            optimizer = None
        if optimizer is not None:
            optimizer._keep_states()
            settings = _settings(shards, optimizer, found.data, found.objects, folder)
            if shards.external:
                shard_files.check_record(found.data["shard_files"], folder)
        schedule = wanted.schedule(training, found.objects.get("lr_scheduler"), folder)
    scaler = shards.core.loss_scaler
    chunks: shard_files.Chunks = {}
    if optimizer is not None and shards.external:
        chunks = _read_states(shards, training, folder, found.data["shard_files"], strict=strict)
    if optimizer is None and (is_model or _is_of_another(shards, training, found.data)):
        _fill_alone(shards, found.saved, folder, strict=strict)
    else:
        _C.load_checkpoint(shards.core, folder, found.saved.tag, strict)
    saved_buffers.restore(training.module, found.buffers)
    skipped_steps = shards.core.skipped_steps  # of the checkpoint
    if optimizer is not None and settings is not None:
        optimizer.load_group_settings(settings)
    shard_files.restore(shards, chunks)
    if optimizer is None:
        _begin_anew(training, scaler)
    if schedule:
        training.lr_scheduler.load_state_dict(schedule)
    if wanted.counters:
        training.global_steps = found.counts.get("global_steps", found.saved.step)
        shards.core.set_progress(shards.core.step_count, skipped_steps)
        training.micro_steps = found.counts.get("micro_steps", 0)
        loader = _data_loader(training)
        if position is not None and hasattr(loader, "used"):
            loader.load_state_dict(position)
    return os.path.join(folder, found.saved.tag), found.objects.get("client_state", {})


@dataclass
class _Found:
    """What a checkpoint has beside its parameters."""

    saved: _C.SavedModel
    data: dict[str, Any]
    objects: dict[str, Any]
    buffers: dict[str, torch.Tensor]
    counts: dict[str, int]


def _check(training: Training, folder: str, tag: str, *, strict: bool) -> _Found:
    """Opens a checkpoint and compares its buffers with the model's. Changes nothing."""
    saved = _C.SavedModel(folder, tag)
    data = program_state.decode(saved.client_state)
    objects = program_state.decode_objects(
        saved.client_state, allow_pickle=_is_on(training, _PICKLE)
    )
    buffers = saved_buffers.read(saved)
    if strict and data:  # the bundled train saves no buffers
        saved_buffers.check(training.module, buffers, folder)
    counters = data.get("counters") or {}
    if not isinstance(counters, dict):
        raise _C.CheckpointError(f"{folder}: 'counters' is no dictionary")
    counts = {
        name: saved_values.whole_number(value, name, folder) for name, value in counters.items()
    }
    return _Found(saved, data, objects, buffers, counts)


def _check_exact_dtypes(shards: Shards, data: dict[str, Any], folder: str) -> None:
    """Raises CheckpointError for bytes that would mean something else in this model."""
    saved = exact_dtypes_of(data, folder)
    for name, dtype in shards.layout.exact_dtypes().items():
        if saved.get(name, dtype) != dtype:
            raise _C.CheckpointError(
                f"{folder}: {name} is {saved[name]}, in this model {dtype}, of which no value may "
                "change"
            )


def _position(data: dict[str, Any], folder: str) -> dict[str, Any] | None:
    """Where the training data loader was at the last update."""
    found = data.get("data_position")
    if not isinstance(found, dict):
        return None
    counts = ("epoch", "samples", *(["length"] if found.get("length") is not None else []))
    return {"length": None} | {
        name: saved_values.whole_number(found.get(name), f"{name} of the data", folder)
        for name in counts
    }


def _begin_anew(training: Training, scaler: Any) -> None:
    """The optimizer, if there is one; as with the states, the engine's own loss scale stays."""
    core = training._shards.core
    if training.optimizer is not None:
        core.reset_optimizer()
        core.refresh_from_masters()
    core.set_progress(core.step_count, core.skipped_steps, scaler)


def _is_of_another(shards: Shards, training: Training, data: dict[str, Any]) -> bool:
    """True if another optimizer trained the model than this engine has, which may have none: so
    states, masters and what is trained differ, of which the core expects its own."""
    own = _optimizer_name(shards, training.optimizer)
    return bool(data) and data.get("optimizer") != own and not is_node_local(training)


def _fill_alone(shards: Shards, saved: _C.SavedModel, folder: str, *, strict: bool) -> None:
    """Takes a checkpoint's values alone; what it lacks stays. Collective, and all or nothing."""
    is_whole = all(parameter.saved or parameter.alias_of for parameter in saved.parameters)
    with all_or_none(shards.communicator, "load_checkpoint"):
        source = open_own(folder, saved.tag)
        filling = Filling(shards, source, strict=strict and is_whole, states=False)
    filling.fill()


def _read_states(
    shards: Shards, training: Training, folder: str, record: shard_files.Record, *, strict: bool
) -> shard_files.Chunks:
    """The checked states of a torch optimizer. Collective."""
    if is_node_local(training):
        record = shard_files.bring(shards, folder, record)
    with all_or_none(shards.communicator, "load_checkpoint"):
        shard_files.verify(shards, folder, record, node_local=is_node_local(training))
        return shard_files.read(shards, folder, record, strict)


def _settings(
    shards: Shards,
    optimizer: ShardOptimizer,
    data: dict[str, Any],
    objects: dict[str, Any],
    folder: str,
) -> list[dict[str, Any]] | None:
    """The hyperparameters of the saved optimizer, which is compared with this one; the core
    compares the states of its own rules."""
    own, saved = _optimizer_name(shards, optimizer), data.get("optimizer")
    if (saved is None and not shards.external) or (
        saved == own and (not shards.external or data["shard_files"])
    ):
        groups, present = objects.get("param_groups"), optimizer.param_groups
        if groups is None:
            return None
        saved_values.check_groups(groups, folder, external=shards.external, count=len(present))
        return saved_values.with_own_decay(groups, None, shards.settings.optimizer, folder)
    raise _C.CheckpointError(
        f"{folder}: the checkpoint has the states of {saved or 'no optimizer'}, this engine's "
        f"optimizer is {own}; load_optimizer_states=False loads the model alone"
    )
