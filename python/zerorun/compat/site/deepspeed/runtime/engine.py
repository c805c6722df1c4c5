"""DeepSpeedEngine: zerorun's engine with DeepSpeed's methods."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from zerorun.agreement import all_or_none
from zerorun.checkpoints.streaming import full_state_dict
from zerorun.config import BatchConfig
from zerorun.shards.shards import Policy
from zerorun.zero import GatheredParameters

from deepspeed._placeholders import absent_method
from deepspeed.runtime import base_optimizer as optimizers
from deepspeed.runtime._gradients import EngineWithGradients
from deepspeed.runtime.config import DeepSpeedConfigError, OffloadStateTypeEnum, deepspeeds_errors
from deepspeed.runtime.constants import ROUTE_EVAL, ROUTE_PREDICT, ROUTE_TRAIN
from deepspeed.runtime.dataloader import DeepSpeedDataLoader
from deepspeed.runtime.engine_queries import EngineAttributes
from deepspeed.utils.timer import ThroughputTimer

# By stage.
_OPTIMIZERS = {0: optimizers.DeepSpeedOptimizer, 3: optimizers.DeepSpeedZeroOptimizer_Stage3}


class DeepSpeedEngine(EngineAttributes, EngineWithGradients):
    """The engine of deepspeed.initialize; ``config`` is the given dictionary."""

    # So that the numbers are DeepSpeed's, and as there; a load asks for leave to unpickle.
    _policy = Policy(
        round_masters=True,
        clips_as_torch=False,
        pickles_objects=True,
        resumes_data=False,  # programs skip batches themselves, as under DeepSpeed
        optimizer_of=lambda stage: _OPTIMIZERS.get(stage, optimizers.DeepSpeedZeroOptimizer),
    )
    client_optimizer: Any = None
    client_lr_scheduler: Any = None
    training_data: Any = None
    collate_fn: Any = None
    mpu: Any = None
    pipeline_parallelism = False
    _is_compiled = False
    # Private there, and yet called and replaced by other programs.
    _get_ckpt_name, _get_optimizer_ckpt_name, _get_zero_ckpt_name = (
        absent_method(f"deepspeed.runtime.engine.DeepSpeedEngine._get_{files}_name")
        for files in ("ckpt", "optimizer_ckpt", "zero_ckpt")
    )

    # --- sizes and settings ---

    def get_data_types(self) -> tuple[torch.dtype, torch.dtype]:
        dtype = next(self.module.parameters()).dtype
        return dtype, torch.float32

    def initial_dynamic_scale(self) -> float:
        return 2.0**self._shards.settings.precision.loss_scaler.initial_scale_power

    def dynamic_loss_scale_args(self) -> dict[str, float]:
        scaler = self._shards.settings.precision.loss_scaler
        return {
            "init_scale": self.initial_dynamic_scale(),
            "scale_window": scaler.window,
            "min_scale": scaler.min_scale,
            "delayed_shift": scaler.hysteresis,
            "consecutive_hysteresis": scaler.consecutive_hysteresis,
        }

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

    # --- the training loop ---

    @functools.cached_property
    def tput_timer(self) -> ThroughputTimer:
        """From the beginning of each forward to the end of its step."""
        return ThroughputTimer(None, self.train_batch_size())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.training:
            self.tput_timer.start()
        return super().forward(*args, **kwargs)

    def scale(self, loss: torch.Tensor, retain_graph: bool = False) -> torch.Tensor:
        """As ZeroEngine's; a graph that is retained needs nothing of it."""
        with deepspeeds_errors():
            return super().scale(loss)

    def backward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        found = super().backward(*args, **kwargs)
        if not self.managed_gradient_accumulation():
            self.micro_steps += 1
        return found

    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        if self._core.no_sync:
            raise DeepSpeedConfigError(
                "It is illegal to call Engine.step() inside no_sync context manager"
            )
        before, passes = self.global_steps, self.micro_steps
        with deepspeeds_errors():
            super().step(lr_kwargs)
        if not self.managed_gradient_accumulation():
            self.micro_steps = passes  # backward counts them
        self.tput_timer.stop(global_step=self.global_steps > before)

    def coalesce_grad_reduction(self) -> contextlib.AbstractContextManager[None]:
        """Several backward passes inside make one micro-step, for the step() after it."""
        if not self.managed_gradient_accumulation():
            raise AssertionError(
                "coalesce_grad_reduction: with managed_gradient_accumulation false every step() "
                "takes all backward passes before it already"
            )
        if self._core.no_sync:
            raise AssertionError("coalesce_grad_reduction cannot be nested inside another no_sync")
        return self.no_sync()

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        if not self.managed_gradient_accumulation():
            raise AssertionError(
                "set_gradient_accumulation_boundary: with managed_gradient_accumulation false "
                "every step() is the boundary"
            )
        super().set_gradient_accumulation_boundary(is_boundary)

    @staticmethod
    def is_map_style_dataset(obj: Any) -> bool:
        return hasattr(obj, "__getitem__") and hasattr(obj, "__len__")

    @staticmethod
    def is_iterable_style_dataset(obj: Any) -> bool:
        return isinstance(obj, torch.utils.data.IterableDataset)

    def deepspeed_io(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        self,
        dataset: Any,
        batch_size: int | None = None,
        route: str = ROUTE_TRAIN,
        pin_memory: bool = True,
        data_sampler: Any = None,
        collate_fn: Any = None,
        num_local_io_workers: int | None = None,
    ) -> Any:
        """A loader with this rank's part of a dataset: shuffled, unless `route` is for evaluation
        or `data_sampler` says otherwise. An iterable dataset gives each rank what it is."""
        if not (self.is_map_style_dataset(dataset) or self.is_iterable_style_dataset(dataset)):
            raise ValueError(f"deepspeed_io: got {type(dataset)}, expected a torch Dataset")
        if route not in {ROUTE_TRAIN, ROUTE_EVAL, ROUTE_PREDICT}:
            raise ValueError(
                f"deepspeed_io: got route {route!r}, expected '{ROUTE_TRAIN}', '{ROUTE_EVAL}' or "
                f"'{ROUTE_PREDICT}'"
            )
        return DeepSpeedDataLoader(
            dataset,
            batch_size or self.batch.micro_batch_size,
            pin_memory=pin_memory and self.device.type != "cpu",
            local_rank=self.local_rank,
            collate_fn=collate_fn or self.collate_fn,
            num_local_io_workers=num_local_io_workers,
            data_sampler=data_sampler,
            data_parallel_world_size=self.dp_world_size,
            data_parallel_rank=self.get_data_parallel_rank(),
            dataloader_drop_last=bool(self.dataloader_drop_last()),
            shuffle=route == ROUTE_TRAIN,
        )

    def module_state_dict(
        self,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
        exclude_frozen_parameters: bool | None = False,
    ) -> dict[str, Any]:
        """The module's own state dict: at stage 3 sharded parameters are empty."""
        state = self.module.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        if exclude_frozen_parameters:
            for name, parameter in self.module.named_parameters(prefix, remove_duplicate=False):
                if not parameter.requires_grad:
                    state.pop(name, None)
        return state

    def load_module_state_dict(
        self,
        checkpoint: Mapping[str, Any],
        strict: bool = True,
        custom_load_fn: Callable[..., Any] | None = None,
        fetch_z3_params: bool = False,
        z3_params_to_fetch: Iterable[torch.nn.Parameter] | None = None,
        allowed_missing_keys: Iterable[str] | None = None,
    ) -> None:
        """The values of ``checkpoint["module"]``, which ``custom_load_fn(src=those, dst=module)``
        may assign; rank 0's for parameters that are to be fetched. Collective."""
        if allowed_missing_keys is not None:
            raise NotImplementedError("allowed_missing_keys is for AutoEP: use strict=False")
        state = checkpoint["module"]
        fetched = self.module.parameters() if fetch_z3_params else ()
        fetched = list(fetched if z3_params_to_fetch is None else z3_params_to_fetch)
        with GatheredParameters(fetched, modifier_rank=0):
            if custom_load_fn is not None:
                custom_load_fn(src=state, dst=self.module)
            elif fetched:
                self.module.load_state_dict(state, strict=strict)
            else:  # ConfigError at stage 3
                self.load_state_dict(state, strict=strict)

    def _consolidated_16bit_state_dict(
        self, exclude_frozen_parameters: bool = False
    ) -> dict[str, torch.Tensor] | None:
        """The whole model on rank 0, None elsewhere. Collective."""
        return full_state_dict(self.module, self._ranks, exclude_frozen_parameters)

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> Any:
        """The same at stage 3; ValueError below."""
        if not self.zero_optimization_partition_weights():
            raise ValueError("this function requires ZeRO-3 mode")
        return self._consolidated_16bit_state_dict(exclude_frozen_parameters)

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str],
        tag: str | None = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool | None = False,
    ) -> bool:
        """As ZeroEngine's, with DeepSpeed's scripts for whole models beside the tags."""
        if not save_dir:
            raise ValueError(f"save_checkpoint: got save_dir {save_dir!r}, expected a folder")
        self.check_tag(tag)
        super().save_checkpoint(save_dir, tag, client_state, save_latest, exclude_frozen_parameters)
        with all_or_none(self._ranks.job, "save_checkpoint"):
            if self.global_rank == 0:
                from deepspeed.utils.zero_to_fp32 import write_scripts

                write_scripts(save_dir)
        return True

    @functools.wraps(EngineWithGradients.load_checkpoint)
    def load_checkpoint(
        self, *args: Any, **kwargs: Any
    ) -> tuple[str | None, dict[str, Any] | None]:
        loaded = super().load_checkpoint(*args, **kwargs)
        if isinstance(self.optimizer, optimizers.DeepSpeedOptimizer):
            self.optimizer.agree_on_states()
        return loaded

    def save_fp16_model(self, save_dir: str, save_filename: str = "pytorch_model.bin") -> bool:
        return self.save_16bit_model(save_dir, save_filename)

    # --- what the host's memory makes needless ---

    def offload_states(
        self,
        include: Iterable[Any] | None = None,
        device: Any = "cpu",
        pin_memory: bool = True,
        non_blocking: bool = False,
    ) -> None:
        """Moves masters and optimizer states from a GPU to host memory, both together, until
        reload_states or their next use. Parameters and gradients stay. States of CPU ranks are
        there already."""
        _check_offload_states(self, include, device)
        if include is None or any(getattr(k, "value", k) in _STATES for k in include):
            self._shards.saver.wait()
            self._core.offload_states()

    def reload_states(self, non_blocking: bool = False) -> None:
        """Brings them back."""
        self._core.reload_states()

    def empty_partition_cache(self) -> None:
        """Gathered parameters that nobody uses hold no memory of this rank's."""

    def allreduce_gradients(self, *_args: Any, **_kwargs: Any) -> None:
        """Gradients are reduced by backward and step."""

    def compile(
        self, backend: Any = "inductor", compile_kwargs: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        """torch.compile of the module; at stage 3 its graph is split where a gather begins."""
        self.module.compile(backend=backend, **(compile_kwargs or {}))
        self._is_compiled = True


_STATES = {OffloadStateTypeEnum.optim_states.value, OffloadStateTypeEnum.hp_params.value}


def _check_offload_states(engine: Any, include: Iterable[Any] | None, device: Any) -> None:
    """Raises for what DeepSpeed refuses, and for states that are not zerorun's to move."""
    known = {kind.value for kind in OffloadStateTypeEnum}
    unknown = [kind for kind in include or () if getattr(kind, "value", kind) not in known]
    if unknown:
        raise ValueError(f"offload_states: got {unknown}, expected some of {', '.join(known)}")
    if getattr(device, "value", device) not in {"cpu", "none"}:
        raise ValueError(f"offload_states: got device {device!r}, expected 'cpu'")
    if engine.optimizer is None:
        raise AssertionError("offload_states: this engine has no optimizer whose states to move")
    if engine._shards.external and engine.device.type != "cpu":
        raise NotImplementedError(
            "offload_states moves the states of zerorun's own rules on GPUs; this engine's are of "
            f"{type(engine.optimizer.optimizer).__name__}: use Adam or AdamW"
        )
