"""DeepSpeedEngine: zerorun's engine with DeepSpeed's queries."""

import os
from collections.abc import Mapping
from typing import Any

import torch
import zerorun
from zerorun.agreement import all_or_none
from zerorun.config import BatchConfig
from zerorun.dataloader import make_dataloader
from zerorun.full_state import full_state_dict

from deepspeed.runtime.base_optimizer import DeepSpeedOptimizer

# A script that DeepSpeed's users expect in a checkpoint's folder.
_ZERO_TO_FP32 = """#!/usr/bin/env python3
# Writes the whole model in fp32: zero_to_fp32.py CHECKPOINT OUTPUT [--tag TAG]; see --help.
import sys

from zerorun.consolidate import main

sys.exit(main())
"""


class DeepSpeedEngine(zerorun.ZeroEngine):
    """The engine of deepspeed.initialize; ``config`` is the given dictionary."""

    optimizer_class = DeepSpeedOptimizer
    round_masters = True  # so that the numbers are DeepSpeed's

    # --- sizes and settings ---

    def train_batch_size(self) -> int:
        return self.batch.train_batch_size

    def train_micro_batch_size_per_gpu(self) -> int:
        return self.batch.micro_batch_size

    def gradient_accumulation_steps(self) -> int:
        return self.batch.accumulation_steps

    def get_batch_info(self) -> tuple[int, int, int]:
        batch = self.batch
        return batch.train_batch_size, batch.micro_batch_size, batch.accumulation_steps

    def zero_optimization(self) -> bool:
        return self.zero_optimization_stage() > 0

    def zero_optimization_partition_gradients(self) -> bool:
        return self.zero_optimization_stage() >= 2

    def zero_optimization_partition_weights(self) -> bool:
        return self.zero_optimization_stage() == 3

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        zero = self.config.get("zero_optimization", {})
        return bool(zero.get("stage3_gather_16bit_weights_on_model_save", False))

    def zero_offload_param(self) -> Any:
        return self.config.get("zero_optimization", {}).get("offload_param")

    def fp16_enabled(self) -> bool:
        return self.core.param_dtype == "fp16"

    def bfloat16_enabled(self) -> bool:
        return self.core.param_dtype == "bf16"

    def gradient_clipping(self) -> float:
        return self.settings.gradient_clipping

    def steps_per_print(self) -> int | None:
        return self.settings.steps_per_print

    def get_data_types(self) -> tuple[torch.dtype, torch.dtype]:
        dtype = next(self.module.parameters()).dtype
        return dtype, torch.float32

    def dynamic_loss_scale(self) -> bool:
        return self.fp16_enabled() and self.config["fp16"].get("loss_scale", 0) == 0

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Another number of micro-steps per batch, of the same micro-batch size."""
        micro = self.batch.micro_batch_size
        self.set_batch(BatchConfig(train_batch_size=train_batch_size, micro_batch_size=micro))

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        """Another micro-batch size, in as many micro-steps per batch."""
        steps = self.batch.accumulation_steps
        self.set_batch(BatchConfig(micro_batch_size=micro_batch_size, accumulation_steps=steps))

    # --- progress ---

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_mom(self) -> list[Any]:
        groups = self.optimizer.param_groups
        return [group.get("betas", group.get("momentum", 0.0)) for group in groups]

    def get_type(self) -> list[Any]:
        return [type(self.optimizer.optimizer).__name__]

    def loss_scale(self) -> float:
        return self.core.loss_scale

    def was_step_applied(self) -> bool:
        """True if the last step() changed the parameters."""
        return self.micro_step_applied

    @property
    def global_samples(self) -> int:
        return self.micro_steps * self.batch.micro_batch_size * self.world_size

    # --- ranks ---

    @property
    def local_rank(self) -> int:
        return zerorun._C.rank_from_environment().local_rank

    @property
    def global_rank(self) -> int:
        return self.communicator.rank

    @property
    def world_size(self) -> int:
        return self.communicator.world_size

    dp_world_size = world_size
    mp_world_size = 1

    # --- data and state ---

    def deepspeed_io(
        self, dataset: Any, batch_size: int | None = None, collate_fn: Any = None, **_options: Any
    ) -> Any:
        """A loader with this rank's part of a dataset."""
        size = batch_size or self.batch.micro_batch_size
        return make_dataloader(dataset, size, self.communicator, collate_fn)

    def module_state_dict(
        self, exclude_frozen_parameters: bool | None = False, **_options: Any
    ) -> dict[str, Any]:
        """The module's own state dict: at stage 3 sharded parameters are empty."""
        state = self.module.state_dict()
        if not exclude_frozen_parameters:
            return state
        parameters = self.module.named_parameters(remove_duplicate=False)
        frozen = {name for name, p in parameters if not p.requires_grad}
        return {name: value for name, value in state.items() if name not in frozen}

    def load_module_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, **_options: Any
    ) -> None:
        self.load_state_dict(state_dict, strict=strict)

    def _zero3_consolidated_16bit_state_dict(
        self, exclude_frozen_parameters: bool = False
    ) -> dict[str, torch.Tensor] | None:
        """The whole model on rank 0, None elsewhere. Collective; ValueError below stage 3."""
        if not self.zero_optimization_partition_weights():
            raise ValueError("this function requires ZeRO-3 mode")
        return full_state_dict(self.module, self.communicator, exclude_frozen_parameters)

    def _consolidated_16bit_state_dict(
        self, exclude_frozen_parameters: bool = False
    ) -> dict[str, torch.Tensor] | None:
        return full_state_dict(self.module, self.communicator, exclude_frozen_parameters)

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str],
        tag: str | None = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool | None = False,
    ) -> bool:
        """As ZeroEngine's, with the script zero_to_fp32.py beside the tags."""
        super().save_checkpoint(save_dir, tag, client_state, save_latest, exclude_frozen_parameters)
        with all_or_none(self.communicator, "save_checkpoint"):
            if self.global_rank == 0:
                path = os.path.join(save_dir, "zero_to_fp32.py")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(_ZERO_TO_FP32)
        return True

    def save_fp16_model(self, save_dir: str, save_filename: str = "pytorch_model.bin") -> bool:
        return self.save_16bit_model(save_dir, save_filename)

    # --- what the host's memory makes needless ---

    def offload_states(self, *_args: Any, **_kwargs: Any) -> None:
        """States of CPU ranks are in host memory already; those of GPUs stay on the device."""
        if self.device.type != "cpu":
            raise NotImplementedError(
                "offload_states is not part of zerorun on GPUs: use offload_optimizer"
            )

    def reload_states(self, non_blocking: bool = False) -> None:
        """As offload_states."""

    def empty_partition_cache(self) -> None:
        """Gathered parameters that nobody uses hold no memory of this rank's."""

    def allreduce_gradients(self, *_args: Any, **_kwargs: Any) -> None:
        """Gradients are reduced by backward and step."""

    def compile(
        self, backend: Any = "inductor", compile_kwargs: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        """torch.compile of the module, below stage 3."""
        if self.zero_optimization_partition_weights():
            raise zerorun.ConfigError("compile: parameters come and go at stage 3; use stage 0-2")
        self.module.compile(backend=backend, **(compile_kwargs or {}))
