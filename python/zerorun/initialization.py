"""zerorun.initialize: from a PyTorch model and a configuration to an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from zerorun import _C, communicator
from zerorun import config as configuration
from zerorun.agreement import all_or_none
from zerorun.dataloader import make_dataloader
from zerorun.device import gpu_of, move_model, release_cached_memory
from zerorun.engine import ZeroEngine
from zerorun.leaf_modules import mark_configured
from zerorun.lr_scheduler import LrScheduler
from zerorun.model_layout import ModelLayout, param_groups_of
from zerorun.optimizer import UpdateRule, ZeroOptimizer, rule_of
from zerorun.shards import Shards, take_over

__all__ = ["initialize"]


def initialize(  # noqa: PLR0913 - DeepSpeed's signature
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    collate_fn: Callable[..., Any] | None = None,
    *,
    config: str | os.PathLike[str] | Mapping[str, Any],
    engine_class: type[ZeroEngine] = ZeroEngine,
) -> tuple[ZeroEngine, ZeroOptimizer | None, Any, Any]:
    """Shards `model` over the ranks of the job; returns (engine, optimizer, dataloader, scheduler).

    Collective: every rank calls it with the same model; parameters become rank 0's. A model that is
    on the CPU is moved to this rank's GPU if it has one (``engine.device``).

    - `config`: a ds_config.json (path) or its content (dict).
    - `optimizer`: a torch optimizer on the model's parameters, or a function of `model_parameters`
      that makes one. torch's Adam and AdamW run as the core's fused ones, others on flat fp32
      shards. Without it the configuration's "optimizer"; without both the engine does not train.
    - `model_parameters`: parameters or groups to train, for the configuration's optimizer.
    - `training_data`: a dataset, for a data loader that gives each rank its part.
    - `lr_scheduler`: a torch scheduler, or a function of the optimizer that makes one; it is
      stepped with the engine. Schedulers that are not given here just change the groups' lr.

    A model of another engine leaves that one, which ends as with :meth:`ZeroEngine.destroy`. An
    error leaves the model as it was, and is one on every rank from where parameters are sharded on.
    Raises :class:`zerorun.ConfigError` for contradictions, naming the parameter or key.
    """
    if not isinstance(model, nn.Module):
        raise _C.ConfigError(f"initialize: model is {type(model)}, expected a torch.nn.Module")
    parsed, given = _parse(config)
    settings = parsed.config
    _check_sources(parsed, optimizer=optimizer, scheduler=lr_scheduler)
    device = move_model(model)
    gpu = gpu_of(device)
    world = communicator.world(settings.comm_timeout_s)
    batch = configuration.resolve_batch(settings.batch, world.world_size)
    basic = _basic_optimizer(model, optimizer, model_parameters, parsed)
    rule = UpdateRule(None) if basic is None or optimizer is None else rule_of(basic)
    layout = _layout_of(model, basic, parsed)
    dtype = layout.dtype(settings.precision.param_dtype)
    adapted = _C.adapt_config(
        settings, dtype, batch.accumulation_steps, rule.name, rule.hyperparameters
    )
    own = communicator.duplicate(world, settings.comm_timeout_s, gpu)
    shards = Shards(layout, adapted, own, device, model)
    with shards, all_or_none(own, "initialize"):
        engine = engine_class(model, shards, batch)
        engine.config = given
        if basic is not None:
            engine.optimizer = engine.optimizer_class(engine, shards, basic)
        engine.lr_scheduler = _scheduler(lr_scheduler, basic, settings)
        if training_data is not None:
            engine.training_dataloader = make_dataloader(
                training_data, batch.micro_batch_size, world, collate_fn
            )
    release_cached_memory(device)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _layout_of(
    model: nn.Module, basic: torch.optim.Optimizer | None, parsed: configuration.ParsedConfig
) -> ModelLayout:
    """The layout of a model that no engine has any more."""
    mark_configured(model, parsed)
    take_over(model.parameters())
    return ModelLayout.of(model, [] if basic is None else basic.param_groups)


def _parse(config: Any) -> tuple[configuration.ParsedConfig, dict[str, Any]]:
    """The configuration, checked, and as it was given."""
    if isinstance(config, Mapping):
        return configuration.parse(config), dict(config)
    if isinstance(config, str | os.PathLike):
        return configuration.load(config), configuration.read(config)
    raise _C.ConfigError(f"config: got {type(config)}, expected a path or a dictionary")


def _check_sources(parsed: configuration.ParsedConfig, **given: Any) -> None:
    for name, value in given.items():
        if value is not None and _names_section(parsed, name):
            raise _C.ConfigError(
                f"/{name}: the program brings one and the configuration names one: leave one out"
            )


def _names_section(parsed: configuration.ParsedConfig, name: str) -> bool:
    return any(v.pointer.startswith(f"/{name}/") and v.is_given for v in parsed.values)


def _basic_optimizer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None,
    model_parameters: Any,
    parsed: configuration.ParsedConfig,
) -> torch.optim.Optimizer | None:
    """The torch optimizer whose groups the engine reads; for the configuration's one a stand-in."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    if optimizer is not None:
        made = optimizer(param_groups_of(model, model_parameters))
        if not isinstance(made, torch.optim.Optimizer):
            raise _C.ConfigError(f"optimizer(parameters) gave {type(made)}, not a torch optimizer")
        return made
    configured = _names_section(parsed, "optimizer")
    groups = [group for group in param_groups_of(model, model_parameters) if group["params"]]
    if not configured or not groups:
        return None
    return _ConfiguredOptimizer(groups, parsed.config.optimizer)


class _ConfiguredOptimizer(torch.optim.Optimizer):
    """Holds the groups of an optimizer that the core runs."""

    def __init__(self, groups: list[dict[str, Any]], settings: _C.OptimizerConfig) -> None:
        defaults: dict[str, Any] = {
            "lr": settings.lr,
            "eps": settings.eps,
            "weight_decay": settings.weight_decay,
        }
        if settings.type == "SGD":
            defaults["momentum"] = settings.momentum
        elif settings.type != "Muon":  # whose matrices have a momentum, and the rest betas
            defaults["betas"] = (settings.beta1, settings.beta2)
        super().__init__(groups, defaults)


def _scheduler(lr_scheduler: Any, basic: torch.optim.Optimizer | None, settings: _C.Config) -> Any:
    if lr_scheduler is None:
        if basic is None or not settings.scheduler.type:
            return None
        return LrScheduler(basic, settings)
    if callable(lr_scheduler) and not hasattr(lr_scheduler, "step"):
        return lr_scheduler(basic)
    return lr_scheduler
