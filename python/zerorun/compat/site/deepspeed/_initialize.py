"""deepspeed.initialize on zerorun."""

import functools
import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import zerorun
from zerorun.sequence.groups import data_parallel_size

import deepspeed.runtime.zero.partition_parameters  # noqa: F401 - gives parameters their ds_status
from deepspeed import comm, elasticity
from deepspeed.moe.layer import MoE
from deepspeed.runtime import config as configs
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.lr_schedules import maker_of
from deepspeed.utils import groups
from deepspeed.utils.logging import log_dist, logger, set_log_level_from_string


@functools.cache
def _announce() -> None:
    """Once, on rank 0: who answers to this name."""
    if os.environ.get("RANK", "0") != "0":
        return
    own = importlib.metadata.version("deepspeed")
    found = importlib.metadata.distributions(name="deepspeed")
    hidden = next((d.version for d in found if d.version != own), None)
    note = f", in front of the installed DeepSpeed {hidden}" if hidden else ""
    print(f"[zerorun] deepspeed is zerorun {zerorun.__version__}{note}", file=sys.stderr)


def _config_of(args: Any, config: Any, config_params: Any) -> Any:
    """The one place that a configuration is given in."""
    names = ("deepspeed_config", "deepscale_config")
    values = args if isinstance(args, Mapping) else vars(args) if args is not None else {}
    from_args = next((values[name] for name in names if values.get(name)), None)
    given = [value for value in (config, config_params, from_args) if value is not None]
    if not given:
        raise configs.DeepSpeedConfigError(
            "DeepSpeed requires --deepspeed_config to specify configuration file, or config="
        )
    if config is None and config_params is None:
        return from_args
    if from_args is not None:
        raise configs.DeepSpeedConfigError(
            "Not sure how to proceed, we were given deepspeed configs in the deepspeed arguments "
            "and deepspeed.initialize() function call"
        )
    return config if config is not None else config_params


@configs.deepspeeds_errors()
def _check(settings: dict[str, Any]) -> None:
    """Raises what DeepSpeed raises for settings that cannot be, before anything is read."""
    if elasticity.elasticity_enabled(settings):
        elasticity.check_batch_keys(settings)
        elasticity.ensure_immutable_elastic_config(settings["elasticity"])
    zero = settings.get("zero_optimization")
    secondary = zero.get("zero_hpz_partition_size", 1) if isinstance(zero, Mapping) else 1
    groups.has_secondary_partitions = secondary not in (None, 0, 1)
    zerorun.config.parse(settings)
    if elasticity.elasticity_enabled(settings):  # for DeepSpeed's error about a number of ranks
        ranks = data_parallel_size(zerorun.communicator.world().world_size)
        elasticity.compute_elastic_config(settings, importlib.metadata.version("deepspeed"), ranks)


def _adapted(
    raw: dict[str, Any], mpu: Any, optimizer: Any, lr_scheduler: Any
) -> tuple[dict[str, Any], Any, Any]:
    """The configuration as zerorun reads it, and what makes optimizer and schedule beside it."""
    settings = configs.adapt_config(configs.sequence_settings(raw, mpu))
    if raw.get("log_level"):
        set_log_level_from_string(raw["log_level"])
    for section, given in (("optimizer", optimizer), ("scheduler", lr_scheduler)):
        if given is not None and settings.pop(section, None):
            logger.warning("%s: the program's own goes before the configuration's", section)
    optimizer = optimizer or configs.take_torchs_own(settings, "optimizer")
    schedule = configs.take_torchs_own(settings, "scheduler")
    _check(settings)
    if lr_scheduler is None and (optimizer is not None or settings.get("optimizer")):
        lr_scheduler = schedule or maker_of(settings.get("scheduler"))
        if lr_scheduler is not None:
            settings.pop("scheduler", None)
    return settings, optimizer, lr_scheduler


def initialize(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
    args: Any = None,
    model: Any = None,
    optimizer: Any = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int = comm.DEFAULT_PORT,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Any = None,
    config: Any = None,
    mesh_param: Any = None,
    config_params: Any = None,
) -> tuple[Any, Any, Any, Any]:
    """As deepspeed.initialize: (engine, optimizer, dataloader, lr_scheduler). Collective."""
    _announce()
    # Programs look for this line to see that their engine is DeepSpeed's.
    log_dist(f"DeepSpeed info: version={importlib.metadata.version('deepspeed')}", ranks=[0])
    if model is None:
        raise configs.DeepSpeedConfigError("deepspeed.initialize requires a model")
    comm.init_distributed(distributed_port=distributed_port, dist_init_required=dist_init_required)
    is_mesh = not isinstance(mesh_param, Sequence)  # of sizes of one
    with groups.of_engine(mpu, mesh_param if is_mesh else None):
        raw = configs.read_config(_config_of(args, config, config_params))
        settings, makes, schedules = _adapted(raw, mpu, optimizer, lr_scheduler)
        for module in model.modules():
            if isinstance(module, MoE):
                data_first = bool(raw.get("use_data_before_expert_parallelism"))
                module.set_deepspeed_parallelism(data_first)
        with configs.deepspeeds_errors():
            engine, optimizer_of_engine, _, scheduler = zerorun.initialize(
                model,
                makes,
                model_parameters,
                lr_scheduler=schedules,
                config=settings,
                mpu=mpu,
                mesh_param=mesh_param,
                engine_class=DeepSpeedEngine,
            )
        groups.start_sequence_data_group()
        engine.mpu = mpu
        engine.keep_groups()
    engine.config, engine.collate_fn, engine.client_optimizer = raw, collate_fn, optimizer
    engine.client_lr_scheduler, engine.training_data = lr_scheduler, training_data
    if training_data is not None:
        engine.training_dataloader = engine.deepspeed_io(training_data)
    is_fp32 = engine._core.param_dtype == "fp32"
    if optimizer is not None and engine.zero_optimization_stage() == 0 and is_fp32:
        optimizer_of_engine = optimizer_of_engine.optimizer  # the program's own, as there
    return engine, optimizer_of_engine, engine.training_dataloader, scheduler
