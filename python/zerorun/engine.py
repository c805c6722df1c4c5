"""ZeroEngine: a PyTorch module whose states are sharded over the ranks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from zerorun import _C, checkpoint, torch_groups
from zerorun.config import BatchConfig, Config, resolve_batch
from zerorun.full_memory import check_order
from zerorun.full_state import save_full_state
from zerorun.gather_hooks import GatherHooks
from zerorun.model_layout import ModelLayout
from zerorun.optimizer import UpdateRule, ZeroOptimizer
from zerorun.parameter_memory import (
    cast_buffers,
    load_parameters,
    masters_from_parameters,
)
from zerorun.placement import Addresses, give_back, place_parameters
from zerorun.state_access import StateAccess

__all__ = ["ZeroEngine"]


_CHECK_EVERY = 100  # steps; looking at the whole model costs more than a step should


def _to_half(value: torch.Tensor) -> torch.Tensor:
    return value.half() if value.is_floating_point() else value


class ZeroEngine(nn.Module):
    """Wraps a model for ZeRO training; made by :func:`zerorun.initialize`.

    The model's hooks do the work, so it may be called through the engine or directly (`module`),
    and backward may be the engine's or the loss's own. Per micro-step: forward, backward,
    :meth:`step`, which updates the parameters when a batch of micro-steps is complete.
    """

    optimizer_class: type[ZeroOptimizer] = ZeroOptimizer

    def __init__(
        self,
        model: nn.Module,
        layout: ModelLayout,
        config: Config,
        batch: BatchConfig,
        communicator: _C.Communicator,
        device: torch.device,
    ) -> None:
        super().__init__()
        torch_groups.end_at_exit()
        self.device = device  # where the model is, and its inputs belong
        self.module = model
        self.layout = layout
        self.settings = config
        self.batch = batch
        self._average_over = batch.accumulation_steps  # micro-steps; the core's division
        self.communicator = communicator
        self.config: dict[str, Any] = {}
        self.optimizer: ZeroOptimizer | None = None
        self.lr_scheduler: Any = None
        self.training_dataloader: Any = None
        self.states = StateAccess(self)
        self.micro_steps = 0
        self._batch_steps = 0  # micro-steps of the current batch
        self.global_steps = 0
        self.last_step: _C.StepResult | None = None
        self.micro_step_applied = False  # the last step() changed the parameters
        self._boundary: bool | None = None
        self._micro_step_ended = False  # its gradients are reduced, or on their way
        self._in_backward = False  # between the first backward and the end of the micro-step
        self._in_no_sync = False
        self._handles: list[Any] = []
        self._gather_hooks: GatherHooks | None = None
        self._addresses: Addresses
        self.core: _C.Engine
        self.collector: _C.GradientCollector

    def attach(self, rule: UpdateRule, groups: int, dtype: str, *, hooks: bool = True) -> None:
        """Makes the core engine and moves the model into it. Collective.

        `hooks`: backward hands over its gradients; else somebody calls the collector.
        """
        specs = self.layout.specs()
        adapted = _C.adapt_config(
            self.settings, dtype, self.batch.accumulation_steps, rule.name, rule.hyperparameters
        )
        core_groups = [_C.ParameterGroup() for _ in range(max(1, groups))]
        self.core = _C.Engine(adapted, self.communicator, specs, core_groups)
        cast_buffers(self.module, dtype, self.communicator)
        load_parameters(self.core, self.layout, self.communicator)
        # Below stage 2 with one micro-step the bucket itself becomes the reduced gradient, so it
        # must not go out before all contributions are in.
        eager = self.zero_optimization_stage() >= 2 or self.batch.accumulation_steps > 1
        self.collector = _C.GradientCollector(self.core, eager)
        for parameter, index in self.layout.ids.items():
            if hooks and self.layout.is_trainable(parameter):
                hook = self.collector.hook(index)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))
        self._gather_hooks = place_parameters(self)
        self._addresses = Addresses(self)
        self._announce_boundary()

    def watch(self, module: nn.Module) -> None:
        """At stage 3: `module` may read parameters that are not its own."""
        if self._gather_hooks is not None:
            self._gather_hooks.watch(module)

    # --- the training loop ---

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.settings.precision.auto_cast_inputs:  # fp16.auto_cast
            args, kwargs = tree_map_only(torch.Tensor, _to_half, (args, kwargs))
        return self.module(*args, **kwargs)

    def backward(
        self,
        loss: torch.Tensor,
        retain_graph: bool = False,
        scale_wrt_gas: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Gradients of a scalar loss, reduced over the ranks: one micro-step.

        `scale_wrt_gas`: the gradient is averaged over gradient_accumulation_steps; False when the
        program has divided the loss itself. Returns the loss as averaged.
        """
        steps = self.batch.accumulation_steps
        self.scale(self._weighted(loss, scale_wrt_gas)).backward(
            retain_graph=retain_graph, **kwargs
        )
        self._in_backward = True
        if self.collector.eager:
            self._end_micro_step()
        return loss / steps if scale_wrt_gas and steps > 1 else loss

    def _weighted(self, loss: torch.Tensor, average: bool) -> torch.Tensor:
        """The loss for which the core's division by the configured steps gives what is asked."""
        weight = self._average_over / (self.batch.accumulation_steps if average else 1)
        return loss if weight == 1 else loss * weight

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss times the loss scale, for programs that call backward() themselves."""
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            got = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss)
            raise _C.ConfigError(f"backward: got {got}, expected a scalar loss tensor")
        factor = self.core.loss_scale
        return loss if factor == 1.0 else loss.float() * factor

    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        """Ends a micro-step; at the end of a batch updates the parameters. Collective.

        A gradient that is not finite skips the update on every rank (`skipped_steps`).
        """
        if self.core.closed:
            raise _C.ConfigError("step: the engine was destroyed; make another with initialize")
        if self.optimizer is None:
            raise _C.ConfigError(
                "step: this engine has no optimizer; give one to initialize or in the configuration"
            )
        if self._in_no_sync:
            raise _C.InternalError("It is illegal to call Engine.step() inside no_sync")
        boundary = self.is_gradient_accumulation_boundary()
        if self.collector.open or not self._micro_step_ended:
            self._end_micro_step()
        self.micro_step_applied = False
        if boundary:
            if self.global_steps % _CHECK_EVERY == 0:
                self.layout.check_unchanged(self.module)
            self._addresses.check()
            self._collect_late()
            self.last_step = self.optimizer.update()
            self.micro_step_applied = self.last_step.applied
            self.collector.stepped()
            self.global_steps += 1
            self._batch_steps = 0
            if self.lr_scheduler is not None and self.last_step.applied:
                self.lr_scheduler.step(**(lr_kwargs or {}))
        else:
            self._batch_steps += 1
        self.micro_steps += 1
        self._micro_step_ended = False
        self._announce_boundary()

    def _end_micro_step(self) -> None:
        self.collector.end_micro_step()
        self._micro_step_ended = True
        self._in_backward = False

    def finish_reduction(self) -> bool:
        """Whether reduced gradients are there: between a backward and the step. Collective."""
        if self._in_backward or self.collector.open:
            self._end_micro_step()
        return self._micro_step_ended

    def _collect_late(self) -> None:
        """Gradients that came after their bucket had been sent, on any rank, go out now."""
        if not self.collector.eager:
            return
        order = 0 if self._gather_hooks is None else self._gather_hooks.memory.order
        flags = torch.tensor([int(self.collector.has_late), order, -order])
        self.communicator.all_reduce(flags, "max", "late gradients, order of gathers")
        late, largest, smallest = flags.tolist()
        check_order(largest, -smallest)
        if late:
            self.collector.collect_late()

    # --- accumulation ---

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the current micro-step completes a batch."""
        if self._in_no_sync:
            return False
        if self._boundary is not None:
            return self._boundary
        return self._batch_steps + 1 >= self.batch.accumulation_steps

    def set_batch(self, batch: BatchConfig) -> None:
        """Other batch sizes from the next batch on. Call it between two batches, on every rank."""
        if self._batch_steps > 0 or self.collector.open:
            raise _C.ConfigError("set_batch: the current batch is not complete; step first")
        self.batch = resolve_batch(batch, self.communicator.world_size)
        self._announce_boundary()

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Says so from now on, instead of counting micro-steps. Call it before backward."""
        self._boundary = bool(is_boundary)
        self._announce_boundary()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Micro-steps inside do not complete a batch; step() inside is an error."""
        self._in_no_sync = True
        self._announce_boundary()
        try:
            yield
        finally:
            self._in_no_sync = False
            self._announce_boundary()

    def _announce_boundary(self) -> None:
        if self.collector.open and self.collector.eager:
            self._end_micro_step()
        self.core.set_accumulation_boundary(self.is_gradient_accumulation_boundary())

    # --- the rest of a module ---

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets a backward that no step followed, if each step ends a batch.

        Accumulated micro-steps stay, since loops with accumulation call this between them; see
        :meth:`drop_batch`. Collective then, like the backward.
        """
        if self.batch.accumulation_steps == 1 and self._boundary is None and not self._in_no_sync:
            self.drop_batch()

    def drop_batch(self) -> None:
        """Forgets all gradients since the last update. Collective."""
        if self._in_backward or self.collector.open:
            self._end_micro_step()
        if not self._micro_step_ended and self._batch_steps == 0:
            return
        self.collector.drop_batch()
        self._micro_step_ended = False
        self._batch_steps = 0
        self._announce_boundary()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The model's own; at stage 3 parameters are empty outside of a gather."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Loads into the model and its master copies; below stage 3."""
        if self.zero_optimization_stage() == 3:
            raise _C.ConfigError(
                "load_state_dict: parameters are sharded at stage 3; use load_checkpoint, or copy "
                "within zerorun.zero.GatheredParameters(params, modifier_rank=0)"
            )
        result = self.module.load_state_dict(*args, **kwargs)
        masters_from_parameters(self.core, self.layout)
        return result

    # --- checkpoints ---

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str],
        tag: str | None = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool | None = False,
    ) -> bool:
        """Saves everything that training needs under `save_dir`/`tag`. Collective.

        `tag`: default ``global_step<N>``. `client_state`: anything picklable, given back by
        :meth:`load_checkpoint`. `save_latest`: the tag is what a load without tag takes.
        `exclude_frozen_parameters`: they are not saved, and a load leaves them as they are. Raises
        CheckpointError or IoError on every rank.
        """
        exclude = bool(exclude_frozen_parameters)
        checkpoint.save(self, save_dir, tag, client_state, save_latest, exclude)
        return True

    def load_checkpoint(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        self,
        load_dir: str | os.PathLike[str],
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Any = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Continues from a checkpoint of any world size and stage. Collective.

        Returns (path, client_state), or (None, None) when `load_dir` has no checkpoint. The model
        must be the saved one; a difference is a CheckpointError that names it, and changes nothing.
        `load_module_strict` False: parameters that only one of the two has stay as they are.
        """
        if custom_load_fn is not None:
            raise _C.ConfigError("load_checkpoint: custom_load_fn is not supported")
        path, client_state = checkpoint.load(
            self,
            load_dir,
            tag,
            strict=load_module_strict,
            optimizer_states=load_optimizer_states and not load_module_only,
            lr_scheduler_states=load_lr_scheduler_states and not load_module_only,
        )
        if path is not None:
            self.drop_batch()
        return path, client_state

    def save_16bit_model(
        self,
        save_dir: str | os.PathLike[str],
        save_filename: str = "pytorch_model.bin",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """The whole model's state dict in one file, written by rank 0. Collective."""
        save_full_state(self, save_dir, save_filename, exclude_frozen_parameters)
        return True

    # --- the end ---

    def destroy(self) -> None:
        """Gives the memory back and takes all hooks off the model, which stays usable.

        Parameters become ordinary tensors; at stage 3 each rank keeps its part, as under zero.Init.
        A second call does nothing. Collective at stage 3 where ranks do not share parameters (on
        GPUs); else only not while another rank is within a step.
        """
        if "core" not in self.__dict__ or self.core.closed:
            return
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._gather_hooks is not None:
            self._gather_hooks.remove()
        self._gather_hooks = None
        with torch.no_grad():
            for parameter in self.layout.names:
                give_back(self, parameter)
        if self.optimizer is not None:
            self.optimizer.detach()
        self.collector = None
        self.core.close()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(super().__getattr__("module"), name)

    def get_global_grad_norm(self) -> float | None:
        """L2 norm of the averaged gradient of the last step, before clipping."""
        return None if self.last_step is None else self.last_step.grad_norm

    @property
    def skipped_steps(self) -> int:
        return self.core.skipped_steps

    def zero_optimization_stage(self) -> int:
        return self.settings.zero.stage
