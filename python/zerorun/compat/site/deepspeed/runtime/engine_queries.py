"""What scripts ask DeepSpeed's engine: about its configuration, its groups and its timers."""

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
import zerorun
from torch import nn
from zerorun.model.model_layout import DTYPES

from deepspeed.moe.layer import MoE
from deepspeed.profiling.flops_profiler.profiler import FlopsProfiler
from deepspeed.runtime.config import DeepSpeedConfig, described
from deepspeed.utils import groups
from deepspeed.utils.logging import logger
from deepspeed.utils.timer import SynchronizedWallClockTimer

_ZERO = "/zero_optimization/"
_OFFLOADED_TO = f"{_ZERO}offload_optimizer/device"
_TAGS = "/checkpoint/tag_validation"
# Methods that return the value of a key, which are named by section and key; `zero` for
# zero_optimization, without `stage3_`.
_KEYS_BY_SECTION = {
    "": (
        "dataloader_drop_last dump_state gradient_predivide_factor log_level memory_breakdown "
        "wall_clock_breakdown zero_allow_untested_optimizer zero_force_ds_cpu_optimizer"
    ),
    "autotuning": (
        "enabled end_profile_step metric metric_path model_info_path start_profile_step"
    ),
    "data_efficiency": "enabled",
    "elasticity": "enabled",
    "flops_profiler": (
        "detailed enabled module_depth output_file profile_step recompute_fwd_factor top_modules"
    ),
    "fp16": "auto_cast",
    "optimizer": "legacy_fusion",
    "zero_optimization": (
        "allgather_bucket_size allgather_partitions compute_grad_norm contiguous_gradients "
        "elastic_checkpoint ignore_unused_parameters legacy_stage1 load_from_fp32_weights "
        "log_trace_cache_warnings parameter_alignment reduce_bucket_size reduce_scatter "
        "round_robin_gradients save_muon_momentum_buffer_in_memory stage3_allgather_sequential "
        "stage3_gather_16bit_weights_on_model_save stage3_max_live_parameters "
        "stage3_max_reuse_distance stage3_model_persistence_threshold "
        "stage3_module_granularity_threshold stage3_param_persistence_threshold "
        "stage3_prefetch_bucket_size sub_group_size"
    ),
}
_KEYS = {
    f"{section.removesuffix('_optimization')}_{key.removeprefix('stage3_')}".strip("_"): (
        f"{section}/{key}"
    )
    for section, keys in _KEYS_BY_SECTION.items()
    for key in keys.split()
}
# Of other names.
_KEYS |= {
    "bf16_master_weights_and_gradients": "/bf16/bf16_master_weights_and_grads",
    "bf16_optimizer_states": "/bf16/bf16_optimizer_states",
    "checkpoint_serialization_enabled": "/checkpoint/checkpoint_serialization",
    "cpuadam_cores_perc": f"{_ZERO}offload_optimizer/cpuadam_cores_perc",
    "fp16_master_weights_and_gradients": "/fp16/fp16_master_weights_and_grads",
    "is_sanity_checks_enabled": f"{_ZERO}enable_sanity_checks",
    "load_universal_checkpoint": "/checkpoint/load_universal",
    "super_offload": f"{_ZERO}offload_optimizer/super_offload",
    "use_node_local_storage": "/checkpoint/use_node_local_storage",
    "zero_hpz_partition_size": f"{_ZERO}zero_hpz_partition_size",
    "zero_multi_rank_bucket_allreduce": f"{_ZERO}use_multi_rank_bucket_allreduce",
    "zero_partial_offload": f"{_ZERO}offload_optimizer/ratio",
    "zero_quantized_gradients": f"{_ZERO}zero_quantized_gradients",
    "zero_quantized_nontrainable_weights": f"{_ZERO}zero_quantized_nontrainable_weights",
    "zero_quantized_weights": f"{_ZERO}zero_quantized_weights",
}
# Methods that return a section, or a value in one, as it was given; None without it.
_SECTIONS = {
    "aio_config": "aio",
    "data_efficiency_config": "data_efficiency",
    "optimizer_params": "optimizer/params",
    "scheduler_name": "scheduler/type",
    "scheduler_params": "scheduler/params",
    "swap_tensor_config": "aio",
    "tensor_parallel_config": "tensor_parallel",
    "torch_autocast_lower_precision_safe_modules": "torch_autocast/lower_precision_safe_modules",
    "zero_offload_optimizer": "zero_optimization/offload_optimizer",
    "zero_offload_param": "zero_optimization/offload_param",
}
# Methods, and properties, that return what the engine has.
_METHODS: dict[str, Callable[[Any], Any]] = {
    "autotp_size": lambda engine: engine._value("/tensor_parallel/autotp_size") or 0,
    "bfloat16_enabled": lambda engine: engine._core.param_dtype == "bf16",
    "checkpoint_tag_validation_enabled": lambda engine: engine._value(_TAGS).lower() != "ignore",
    "checkpoint_tag_validation_fail": lambda engine: engine._value(_TAGS).lower() == "fail",
    "fp16_enabled": lambda engine: engine._core.param_dtype == "fp16",
    "get_batch_info": attrgetter(
        "batch.train_batch_size", "batch.micro_batch_size", "batch.accumulation_steps"
    ),
    "get_data_parallel_rank": attrgetter("_ranks.data.rank"),
    "get_data_parallel_world_size": attrgetter("_ranks.data.world_size"),
    "get_lr": lambda engine: [group["lr"] for group in engine.optimizer.param_groups],
    "get_model_parallel_rank": attrgetter("_ranks.model_rank"),
    "get_model_parallel_world_size": attrgetter("_ranks.model_size"),
    "get_mom": lambda engine: [
        group.get("betas", group.get("momentum", 0.0)) for group in engine.optimizer.param_groups
    ],
    "get_sequence_parallel_group": lambda _: groups._get_sequence_parallel_group(),
    "get_sequence_parallel_rank": lambda _: groups._get_sequence_parallel_rank(),
    "get_sequence_parallel_world_size": lambda _: groups._get_sequence_parallel_world_size(),
    "get_tensor_parallel_rank": lambda engine: getattr(engine._ranks.mesh, "tensor_rank", 0),
    "get_tensor_parallel_world_size": lambda engine: len(
        getattr(engine._ranks.mesh, "tensor_ranks", None) or (0,)
    ),
    "get_type": lambda engine: (
        [engine._shards.settings.optimizer.type] * len(engine.optimizer.param_groups)
    ),
    "gradient_accumulation_steps": attrgetter("batch.accumulation_steps"),
    "gradient_clipping": attrgetter("_shards.settings.gradient_clipping"),
    "is_first_weights_partition_group": lambda engine: engine.stage == 3,
    "loss_scale": attrgetter("_core.loss_scale"),
    "postscale_gradients": lambda engine: not engine._value("/prescale_gradients"),
    "steps_per_print": attrgetter("_shards.settings.steps_per_print"),
    "torch_autocast_enabled": lambda engine: engine.autocast is not None,
    "train_batch_size": attrgetter("batch.train_batch_size"),
    "train_micro_batch_size_per_gpu": attrgetter("batch.micro_batch_size"),
    "was_step_applied": attrgetter("_micro_step_applied"),  # the last step() changed the parameters
    "zenflow_config": lambda _: None,  # ZenFlow is not part of zerorun
    "zero_cpu_offload": lambda engine: engine._section(_OFFLOADED_TO) == "cpu",
    "zero_nvme_offload_optimizer": lambda engine: engine._section(_OFFLOADED_TO) == "nvme",
    "zero_optimization": lambda engine: engine.stage > 0,
    "zero_optimization_partition_gradients": lambda engine: engine.stage >= 2,
    "zero_optimization_partition_weights": lambda engine: engine.stage == 3,
    "zero_use_cpu_optimizer": lambda engine: engine._section(_OFFLOADED_TO) in {"cpu", "nvme"},
}
_PROPERTIES: dict[str, Callable[[Any], Any]] = {
    # The torch optimizer under the one that initialize returned.
    "basic_optimizer": lambda engine: getattr(engine.optimizer, "optimizer", None),
    "dist_backend": lambda _: dist.get_backend(),
    "dp_world_size": attrgetter("_ranks.data.world_size"),
    "global_rank": attrgetter("_ranks.job.rank"),
    "global_samples": lambda engine: (
        engine.micro_steps * engine.batch.micro_batch_size * engine.dp_world_size
    ),
    "has_moe_layers": lambda engine: bool(engine.moe_layers),
    "inside_no_sync_ctxt": attrgetter("_core.no_sync"),
    "is_compiled": attrgetter("_is_compiled"),
    "local_rank": lambda _: zerorun._C.rank_from_environment().local_rank,
    "moe_layers": lambda engine: [m for m in engine.module.modules() if isinstance(m, MoE)],
    "mp_world_size": attrgetter("_ranks.model_size"),
    "num_experts": lambda engine: [layer.num_experts for layer in engine.moe_layers],
    "param_names": lambda engine: {p: name for name, p in engine.module.named_parameters()},
    "seq_dp_world_size": lambda engine: dist.get_world_size(engine.seq_data_parallel_group),
    "seq_parallel_group": lambda engine: (
        groups._get_sequence_parallel_group() if engine.sequence_parallel_size > 1 else None
    ),
    "sequence_parallel_size": lambda _: groups._get_sequence_parallel_world_size(),
    "sparse_tensor_module_names": lambda _: set(),  # gradients of embeddings are dense
    "world_size": attrgetter("_ranks.job.world_size"),
}
# Parts that zerorun does not have, which are therefore off.
_OFF = (
    "checkpoint_writer_enabled",
    "compile_autosp",
    "compile_autotp",
    "random_ltd_enabled",
    "curriculum_learning_enabled",
    "data_sampling_enabled",
    "is_deepcompile_active",
    "is_deepcompile_enabled",
    "uses_parallelization_pass_only",
)


class ConfigQueries:
    """Answers from `config`, the dictionary that was given."""

    config: dict[str, Any]

    def _value(self, pointer: str) -> Any:
        """A key's value or default, also under its name without `stage3_`."""
        default = described(pointer).get("default")
        for name in (pointer, pointer.replace("/stage3_", "/")):
            given = self._section(name)
            if given is not None and given != "auto":
                if isinstance(default, bool):
                    return bool(given)
                is_count = isinstance(given, float) and given.is_integer()
                return int(given) if is_count and isinstance(default, int) else given
        return default

    def _section(self, path: str) -> Any:
        found: Any = self.config
        for name in path.strip("/").split("/"):
            found = found.get(name) if isinstance(found, dict) else None
        return found

    # --- what more than one key says ---

    def zero_overlap_comm(self) -> bool:
        given = self._value(f"{_ZERO}overlap_comm")
        return self._value(f"{_ZERO}stage") == 3 if given is None else given

    def optimizer_name(self) -> str | None:
        name = self._section("optimizer/type")
        return name.lower() if name else None

    def managed_gradient_accumulation(self) -> bool:
        given = self.config.get("managed_gradient_accumulation")
        return given in (None, "auto") or bool(given)

    def torch_autocast_dtype(self) -> torch.dtype:
        name = str(self._section("torch_autocast/dtype") or "bfloat16").removeprefix("torch.")
        return {"bfloat16": torch.bfloat16, "bf16": torch.bfloat16}.get(name, torch.float16)

    @property
    def communication_data_type(self) -> torch.dtype | None:
        """The dtype of gradients on the wire; None: that of the parameters."""
        given = self._value("/communication_data_type")
        return DTYPES[given] if given else None


for _name, _pointer in _KEYS.items():
    setattr(ConfigQueries, _name, functools.partialmethod(ConfigQueries._value, _pointer))
for _name, _path in _SECTIONS.items():
    setattr(ConfigQueries, _name, functools.partialmethod(ConfigQueries._section, _path))
for _name in _OFF:
    setattr(ConfigQueries, _name, lambda self: False)
for _name, _get in _METHODS.items():
    setattr(ConfigQueries, _name, functools.partialmethod(lambda self, get: get(self), _get))
for _name, _get in _PROPERTIES.items():
    setattr(ConfigQueries, _name, property(_get))


class EngineAttributes(ConfigQueries):
    """Values that DeepSpeed's engine sets when it is made, or keeps up to date."""

    module: nn.Module
    _core: Any
    gradient_average = True
    use_ds_comm = False
    torch_autocast_z0_gradscaler = None  # fp16 has the engine's own loss scale
    losses = None

    @functools.cached_property
    def timers(self) -> SynchronizedWallClockTimer:
        """For timers of the script's own; the engine's figures are its metrics."""
        return SynchronizedWallClockTimer()

    @functools.cached_property
    def flops_profiler(self) -> FlopsProfiler:
        """What ``flops_profiler`` measures, on rank 0."""
        if not self.flops_profiler_enabled():
            raise AttributeError("this engine's configuration does not enable flops_profiler")
        return FlopsProfiler(self.module, self)

    @property
    def enable_backward_allreduce(self) -> bool:
        return not self._core.no_sync

    @enable_backward_allreduce.setter
    def enable_backward_allreduce(self, enable: bool) -> None:
        self._core.no_sync = not enable

    @functools.cached_property
    def _config(self) -> DeepSpeedConfig:
        """The configuration as typed values."""
        return DeepSpeedConfig(self.config, self.mpu, self.mesh_device)

    def keep_groups(self) -> None:
        """Those that the engine was made with; another engine may have others."""
        self.mesh_device = groups.mesh_device
        self.data_parallel_group = groups._get_data_parallel_group()
        self.seq_data_parallel_group = groups._get_sequence_data_parallel_group()

    def check_tag(self, tag: str | None) -> None:
        """Ranks that name different tags are an error or a warning, as tag_validation says.
        Collective."""
        if tag is None or not self.checkpoint_tag_validation_enabled():
            return
        tags: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(tags, str(tag))
        if len(set(tags)) == 1:
            return
        text = f"checkpoint tags differ between ranks: {', '.join(tags)}; give one to all"
        if self.checkpoint_tag_validation_fail():
            raise AssertionError(f"{text} (checkpoint.tag_validation is Fail)")
        logger.warning("%s. Rank 0's is taken", text)
