"""Attributes of DeepSpeed's engine that scripts read."""

import functools
from typing import Any

import torch.distributed as dist
from torch import nn

from deepspeed.moe.layer import MoE
from deepspeed.profiling.flops_profiler.profiler import FlopsProfiler
from deepspeed.utils import groups
from deepspeed.utils.logging import logger
from deepspeed.utils.timer import SynchronizedWallClockTimer


class EngineAttributes:
    """Values that DeepSpeed's engine sets when it is made, or keeps up to date."""

    module: nn.Module
    _core: Any
    gradient_average = True
    use_ds_comm = False
    torch_autocast_z0_gradscaler = None  # fp16 has the engine's own loss scale
    losses = None

    @property
    def sparse_tensor_module_names(self) -> set[str]:
        """Gradients of embeddings are dense."""
        return set()

    @functools.cached_property
    def timers(self) -> SynchronizedWallClockTimer:
        """For timers of the script's own; the engine's figures are its metrics."""
        return SynchronizedWallClockTimer()

    @functools.cached_property
    def flops_profiler(self) -> FlopsProfiler:
        """What ``flops_profiler`` measures, on rank 0."""
        if not self.flops_profiler_enabled():  # type: ignore[attr-defined]
            raise AttributeError("this engine's configuration does not enable flops_profiler")
        return FlopsProfiler(self.module, self)

    @property
    def enable_backward_allreduce(self) -> bool:
        return not self._core.no_sync

    @enable_backward_allreduce.setter
    def enable_backward_allreduce(self, enable: bool) -> None:
        self._core.no_sync = not enable

    @property
    def inside_no_sync_ctxt(self) -> bool:
        return self._core.no_sync

    @property
    def param_names(self) -> dict[nn.Parameter, str]:
        return {parameter: name for name, parameter in self.module.named_parameters()}

    def keep_groups(self) -> None:
        """Those that the engine was made with; another engine may have others."""
        self.mesh_device = groups.mesh_device
        self.data_parallel_group = groups._get_data_parallel_group()
        self.seq_data_parallel_group = groups._get_sequence_data_parallel_group()

    @property
    def seq_parallel_group(self) -> Any:
        return groups._get_sequence_parallel_group() if self.sequence_parallel_size > 1 else None

    @property
    def seq_dp_world_size(self) -> int:
        return dist.get_world_size(self.seq_data_parallel_group)

    @property
    def sequence_parallel_size(self) -> int:
        return groups._get_sequence_parallel_world_size()

    @property
    def moe_layers(self) -> list[MoE]:
        return [module for module in self.module.modules() if isinstance(module, MoE)]

    @property
    def num_experts(self) -> list[int]:
        return [layer.num_experts for layer in self.moe_layers]

    def check_tag(self, tag: str | None) -> None:
        """Ranks that name different tags are an error or a warning, as tag_validation says.
        Collective."""
        if tag is None or not self.checkpoint_tag_validation_enabled():  # type: ignore[attr-defined]
            return
        tags: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(tags, str(tag))
        if len(set(tags)) == 1:
            return
        text = f"checkpoint tags differ between ranks: {', '.join(tags)}; give one to all"
        if self.checkpoint_tag_validation_fail():  # type: ignore[attr-defined]
            raise AssertionError(f"{text} (checkpoint.tag_validation is Fail)")
        logger.warning("%s. Rank 0's is taken", text)
