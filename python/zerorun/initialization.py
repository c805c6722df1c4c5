"""zerorun.initialize: from a PyTorch model and a configuration to an engine."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from zerorun import _C, communicator, torch_seam
from zerorun import config as configuration
from zerorun import device as devices
from zerorun.agreement import all_or_none
from zerorun.engine import ZeroEngine
from zerorun.model.adoption import adopt
from zerorun.model.buffers import cast_buffers
from zerorun.model.engine_ranks import EngineRanks, Mesh, mesh_of, parts_of
from zerorun.model.expert_layout import place_experts
from zerorun.model.model_layout import ModelLayout, param_groups_of, warn_of_different_replicas
from zerorun.model.partition import edits_are_refused, partition_of, shapes_without_values
from zerorun.model.private_partition import PrivatePartition
from zerorun.model.tensors import mode_of
from zerorun.model.units import UnitPolicy, mark_configured
from zerorun.observers import observe
from zerorun.optimizers.lr_scheduler import LrScheduler
from zerorun.optimizers.optimizer import ZeroOptimizer, rule_of
from zerorun.optimizers.saved_values import DECOUPLED, is_decoupled
from zerorun.program_warning import logger, warn
from zerorun.sequence.groups import data_parallel_size, start_configured
from zerorun.shards.shards import Shards, take_over
from zerorun.torch_seam import serve_mixed_norms


# size: half of it is the keywords and what they mean
def initialize(  # noqa: PLR0913 - DeepSpeed's signature
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    collate_fn: Callable[..., Any] | None = None,
    *,
    config: str | os.PathLike[str] | Mapping[str, Any],
    mpu: Any = None,
    mesh_param: Any = None,
    device_mesh: Any = None,
    units: UnitPolicy | None = None,
    engine_class: type[ZeroEngine] = ZeroEngine,
) -> tuple[ZeroEngine, ZeroOptimizer | None, Any, Any]:
    """Shards `model` over the ranks of the job; returns (engine, optimizer, dataloader, scheduler).

    The arguments are those of ``deepspeed.initialize``. Collective: every rank calls it with the
    same model. All ranks get rank 0's values. A model on the CPU is moved to this rank's GPU if it
    has one (``engine.device``), parameter by parameter, and the memory of each goes as soon as the
    engine has its values: the peak is what the engine keeps and the largest parameter. Only what
    the program itself refers to (``state_dict()``, a tensor of which parameters are views) stays.

    - `config`: the path of a ds_config.json, or its content as a dict.
    - `optimizer`: a torch optimizer on the model's parameters, or a function of `model_parameters`
      that makes one. torch's Adam and AdamW run as the fused ones of the C++ core, others on flat
      fp32 shards. None: the configuration's "optimizer"; without that the engine does not train.
    - `model_parameters`: parameters or groups to train, for the configuration's optimizer.
    - `training_data`: a dataset. The returned data loader gives each rank different samples, and
      its position is part of checkpoints: :meth:`zerorun.ZeroEngine.make_dataloader`.
    - `lr_scheduler`: a torch scheduler, or a function of the optimizer that makes one. The engine
      steps it. A scheduler that is not passed here also works, if the program steps it.
    - `mpu`, `device_mesh`, `mesh_param`: one of these if ranks hold different parts of the model
      or of a sequence, or if a mesh says which ranks share a copy; see
      :func:`zerorun.model.engine_ranks.mesh_of`. States are sharded and gradients averaged over
      the data-parallel ranks; norm, overflow and loss scale are computed over all ranks.
    - `units`: the modules that are gathered as a whole at stage 3; see :func:`zerorun.shard`.

    If the model belongs to another engine, that engine is destroyed first. If initialize fails, the
    model is as before, but that parameters which the engine had taken are rounded to its dtype; an
    error after sharding has begun is raised on every rank. At stage 3 a rank that fails alone while
    parameters move (its host has no memory left) leaves parameters of the others empty: make the
    model anew. Raises
    :class:`zerorun.ConfigError`, which names the parameter or key, if arguments are invalid or
    contradict each other.
    """
    if not isinstance(model, nn.Module):
        raise _C.ConfigError(f"initialize: model is {type(model)}, expected a torch.nn.Module")
    if any(isinstance(m, nn.parallel.DistributedDataParallel) for m in model.modules()):
        raise _C.ConfigError(
            "the model is, or has, a DistributedDataParallel, which keeps gradients from the "
            "engine: leave it out, or give what is in it (model.module) before a backward"
        )
    torch_seam.check()
    devices.make_current(devices.local_device())  # before anything is asked of PyTorch's groups
    mesh = mesh_of(mpu, device_mesh, mesh_param)
    if not isinstance(config, str | os.PathLike | Mapping):
        raise _C.ConfigError(f"config: got {type(config)}, expected a path or a dictionary")
    parsed = configuration.of_any_form(config)
    given = dict(config) if isinstance(config, Mapping) else configuration.read(config)
    parsed = _with_mesh(parsed, given, mesh)
    settings = parsed.config
    for name, own in (("optimizer", optimizer), ("scheduler", lr_scheduler)):
        if own is not None and configuration.given_values(parsed, name):
            raise _C.ConfigError(
                f"/{name}: the program brings one and the configuration names one: leave one out"
            )
    world = communicator.world(settings.comm_timeout_s)
    if mesh is None:
        communicator.check_not_alone("initialize", "device_mesh")
    model_parameters = adopt(model, optimizer, model_parameters, mesh, settings.zero.stage)
    with mode_of(model.parameters()), devices.on_local_device(model) as device:
        own = world.duplicate(settings.comm_timeout_s, devices.gpu_of(device))
        ranks = EngineRanks.of(own, mesh)
        batch = configuration.batch_for(parsed, data_parallel_size(ranks.data.world_size))
        basic = _basic_optimizer(model, optimizer, model_parameters, parsed)
        layout = _prepare(model, basic, parsed, units, ranks)
        # Without an optimizer of the program's it is the configuration's.
        rule = (None, {}) if basic is None or optimizer is None else rule_of(basic, device)
        adapted = _C.adapt_config(settings, layout.dtype, batch.accumulation_steps, *rule)
        shards = Shards(layout, adapted, ranks, device, model, engine_class._policy)
        with shards:
            with all_or_none(own, "initialize"):
                engine = engine_class(model, shards, batch)
                _configure(engine, parsed, given)
            if basic is not None:  # which is collective
                kind = engine._policy.optimizer_of
                made = ZeroOptimizer if kind is None else kind(shards.stage)
                engine.optimizer = made(engine, shards, basic)
            with all_or_none(own, "initialize"):
                engine.lr_scheduler = _scheduler(lr_scheduler, basic, settings)
                measures = observe(engine, parsed)
                if training_data is not None:
                    drop = configuration.value_of(parsed, "/dataloader_drop_last", False)
                    size = batch.micro_batch_size
                    engine.make_dataloader(training_data, size, collate_fn, drop_last=drop)
            if measures:
                engine.measure_peak()
    devices.release_cached_memory(device)
    _log(parsed, layout, ranks, f"{device}, {layout.dtype}")
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _with_mesh(
    parsed: configuration.ParsedConfig, given: dict[str, Any], mesh: Mesh | None
) -> configuration.ParsedConfig:
    """The configuration with what the mesh says: ranks that share a sequence, or a copy of what is
    sharded. Collective if ranks share sequences."""
    if mesh is None:
        return start_configured(parsed, given)
    asked: dict[str, Any] = {}
    configured = configuration.value_of(parsed, "/sequence_parallel_size", 1)
    if mesh.sequence_size not in {1, configured}:
        _check_unset("/sequence_parallel_size", configured, 1, mesh.sequence_size)
        asked["sequence_parallel_size"] = mesh.sequence_size
    zero, size = parsed.config.zero, mesh.shard_ranks
    if size is not None and zero.stage > 0 and zero.shard_group_size != size:
        _check_unset("/zerorun/shard_group_size", zero.shard_group_size, 0, size)
        asked["zerorun"] = {**given.get("zerorun", {}), "shard_group_size": size}
    if asked:
        given = {**given, **asked}
        parsed = configuration.parse(given, parsed.config.source)
    shares = configuration.value_of(parsed, "/sequence_parallel_size", 1) > 1
    world = communicator.world(parsed.config.comm_timeout_s)
    return start_configured(parsed, given, parts_of(world, mesh) if shares else None)


def _check_unset(key: str, value: int, unset: int, of_mesh: int) -> None:
    """Raises ConfigError for a value that contradicts the mesh."""
    if value != unset:
        shown = value if value > 0 else '"auto"'
        raise _C.ConfigError(
            f"{key}: got {shown}, but the mesh says {of_mesh} ranks: give one of them"
        )


def _configure(
    engine: ZeroEngine, parsed: configuration.ParsedConfig, given: dict[str, Any]
) -> None:
    """Gives the engine what the core does not do."""
    engine.config = given
    if configuration.value_of(parsed, "/torch_autocast/enabled", False):
        name = configuration.value_of(parsed, "/torch_autocast/dtype", "bfloat16")
        half = name.removeprefix("torch.") in {"float16", "fp16", "half"}
        engine.autocast = torch.float16 if half else torch.bfloat16
    if not configuration.value_of(parsed, "/managed_gradient_accumulation", True):
        engine._core.boundary = True  # each step() ends a batch
    refuses_edits = edits_are_refused(parsed)
    for parameter in engine._layout.names:
        partition = partition_of(parameter)
        if partition is not None:
            partition.refuses_edits = refuses_edits


def _prepare(
    model: nn.Module,
    basic: torch.optim.Optimizer | None,
    parsed: configuration.ParsedConfig,
    units: UnitPolicy | None,
    ranks: EngineRanks,
) -> ModelLayout:
    """The layout of the model, which no other engine has then, with its buffers in their dtypes."""
    mark_configured(model, parsed)
    _check_parts(model, parsed, ranks)
    take_over(model.parameters())
    groups = basic.param_groups if basic is not None else []
    dtype = parsed.config.precision.param_dtype
    layout = ModelLayout.of(model, groups, dtype, units, ranks.mesh)
    cast_buffers(model, parsed, layout.dtype)
    serve_mixed_norms(model, layout.dtype)
    _warn_of_max_norm(model)
    place_experts(layout, ranks)
    if ranks.tensor is not None:
        warn_of_different_replicas(layout, ranks)
    return layout


def _warn_of_max_norm(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            warn(
                f"{type(module).__name__} {name} has max_norm, by which its forward changes the "
                "weights of each rank's own input: ranks have other weights until the next step, "
                "and at stage 3 the changes may be lost. Change them between steps instead, within "
                "zerorun.zero.GatheredParameters(weight, modifier_rank=0)"
            )


def _check_parts(model: nn.Module, parsed: configuration.ParsedConfig, ranks: EngineRanks) -> None:
    """Raises ConfigError for what a model that is divided among ranks cannot have."""
    for name, parameter in model.named_parameters():
        partition = partition_of(parameter)
        if isinstance(partition, PrivatePartition) and partition.ranks != ranks.data_ranks:
            found = "all ranks" if partition.ranks is None else f"ranks {list(partition.ranks)}"
            own = ranks.data_ranks
            expected = "all ranks" if own is None else f"ranks {list(own)}"
            raise _C.ConfigError(
                f"parameter {name} is partitioned over {found} by zero.Init, but this engine's "
                f"data-parallel ranks are {expected}: give zero.Init and initialize the same mpu "
                "(zero.Init also takes data_parallel_group)"
            )
    kept = parsed.config.checkpoint
    if ranks.model_size > 1 and (kept.keep_last or kept.keep_every):
        raise _C.ConfigError(
            "/checkpoint/keep_last and keep_every are not for a model that is divided among "
            f"{ranks.model_size} model-parallel ranks: remove old checkpoints yourself"
        )


def _log(
    parsed: configuration.ParsedConfig, layout: ModelLayout, ranks: EngineRanks, kind: str
) -> None:
    """Logs on rank 0 what was made, and what the configuration's reader found odd."""
    if ranks.job.rank > 0:
        return
    for warning in parsed.warnings:
        logger.warning("%s", warning)
    stage, names, units = parsed.config.zero.stage, len(layout.names), len(layout.units)
    if stage == 3 and layout.outside:
        nbytes = sum(parameter.nbytes for parameter in layout.outside)
        logger.warning(
            "%d frozen parameters are not sharded at stage 3, since layers hold a copy "
            "(bitsandbytes' 8-bit ones) or they are made of other tensors; the first is %s: %d "
            "bytes on every rank",
            len(layout.outside),
            next(iter(layout.outside.values())),
            nbytes,
        )
    what = "stage %d over %d ranks on %s: %d parameters in %d units"
    logger.info(what, stage, ranks.data.world_size, kind, names, units)
    if ranks.model_size > 1:
        logger.info("%d parts of the model, each on so many ranks", ranks.model_size)


def _basic_optimizer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None,
    model_parameters: Any,
    parsed: configuration.ParsedConfig,
) -> torch.optim.Optimizer | None:
    """The torch optimizer whose groups the engine reads; for the configuration's one a stand-in."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    if optimizer is not None and not callable(optimizer):
        raise _C.ConfigError(
            f"optimizer: got {type(optimizer)}, expected a torch optimizer or a function that "
            "makes one of parameter groups"
        )
    if optimizer is not None:
        with shapes_without_values(model.parameters()):
            made = optimizer(param_groups_of(model, model_parameters))
        if not isinstance(made, torch.optim.Optimizer):
            raise _C.ConfigError(f"optimizer(parameters) gave {type(made)}, not a torch optimizer")
        return made
    configured = configuration.given_values(parsed, "optimizer")
    groups = [group for group in param_groups_of(model, model_parameters) if group["params"]]
    if not configured or not groups:
        return None
    settings = parsed.config.optimizer
    bases: tuple[type, ...] = (_ConfiguredOptimizer,)
    if configuration.given_values(parsed, "optimizer/params").get("torch_adam") is True:
        decoupled = is_decoupled(settings.type, adam_w_mode=settings.adam_w_mode)
        bases += (torch.optim.AdamW if decoupled else torch.optim.Adam,)
    # Loggers name the curves of learning rates by the class.
    return type(settings.type, bases, {})(groups, parsed)


class _ConfiguredOptimizer(torch.optim.Optimizer):
    """Holds the groups of an optimizer that the core runs."""

    def __init__(self, groups: list[dict[str, Any]], parsed: configuration.ParsedConfig) -> None:
        settings = parsed.config.optimizer
        defaults: dict[str, Any] = {
            name: float(f"{value:.7g}")  # the core's are fp32
            for name, value in (
                ("lr", settings.lr),
                ("eps", settings.eps),
                ("weight_decay", settings.weight_decay),
            )
        }
        for name, value in configuration.given_values(parsed, "optimizer/params").items():
            if name in defaults and isinstance(value, float | int):
                defaults[name] = value
        if settings.type == "SGD":
            defaults["momentum"] = settings.momentum
        elif settings.type not in {"Adagrad", "Muon"}:  # Muon's matrices have a momentum
            defaults["betas"] = (settings.beta1, settings.beta2)
        decoupled = is_decoupled(settings.type, adam_w_mode=settings.adam_w_mode)
        if decoupled is not None:
            defaults[DECOUPLED] = decoupled
        torch.optim.Optimizer.__init__(self, groups, defaults)
        self.fused_rule = settings.type
        self.adam_w_mode = decoupled


def _scheduler(lr_scheduler: Any, basic: torch.optim.Optimizer | None, settings: _C.Config) -> Any:
    if lr_scheduler is None:
        if basic is None or not settings.scheduler.type:
            return None
        return LrScheduler(basic, settings)
    if callable(lr_scheduler) and not hasattr(lr_scheduler, "step"):
        return lr_scheduler(basic)
    _check_scheduled(lr_scheduler, basic)
    return lr_scheduler


def _check_scheduled(lr_scheduler: Any, basic: torch.optim.Optimizer | None) -> None:
    """Raises ConfigError for a torch scheduler of an optimizer that this engine does not step."""
    scheduled = getattr(lr_scheduler, "optimizer", None)
    if not isinstance(scheduled, torch.optim.Optimizer):
        return
    own = [] if basic is None else [id(group) for group in basic.param_groups]
    if not {id(group) for group in scheduled.param_groups} & set(own):
        raise _C.ConfigError(
            "initialize: lr_scheduler changes the learning rate of an optimizer that is not this "
            "engine's: give that optimizer too, or a function of the optimizer that makes the "
            "scheduler"
        )
