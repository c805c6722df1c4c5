"""ZeroEngine: a PyTorch module whose states are sharded over the ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from zerorun import _C
from zerorun.config import BatchConfig, Config
from zerorun.gather_hooks import GatherHooks
from zerorun.model_layout import ModelLayout
from zerorun.optimizer import UpdateRule, ZeroOptimizer
from zerorun.parameter_memory import cast_buffers, full_view, load_parameters

__all__ = ["ZeroEngine"]


class ZeroEngine(nn.Module):
    """Wraps a model for ZeRO training; made by :func:`zerorun.initialize`.

    The model's hooks do the work, so it may be called through the engine or directly (`module`),
    and backward may be the engine's or the loss's own. Per micro-step: forward, backward,
    :meth:`step`, which updates the parameters when a batch of micro-steps is complete.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: ModelLayout,
        config: Config,
        batch: BatchConfig,
        communicator: _C.Communicator,
    ) -> None:
        super().__init__()
        self.module = model
        self.layout = layout
        self.settings = config
        self.batch = batch
        self.communicator = communicator
        self.config: dict[str, Any] = {}
        self.optimizer: ZeroOptimizer | None = None
        self.lr_scheduler: Any = None
        self.training_dataloader: Any = None
        self.client_lr_scheduler: Any = None
        self.micro_steps = 0
        self.global_steps = 0
        self.last_step: _C.StepResult | None = None
        self._boundary: bool | None = None
        self._micro_step_ended = False
        self._in_no_sync = False
        self._handles: list[Any] = []
        self._gather_hooks: GatherHooks | None = None
        self.core: _C.Engine
        self.collector: _C.GradientCollector

    def attach(self, rule: UpdateRule, group_count: int, dtype: str) -> None:
        """Makes the core engine and moves the model into it. Collective."""
        specs = self.layout.specs()
        adapted = _C.adapt_config(
            self.settings, dtype, self.batch.accumulation_steps, rule.name, rule.hyperparameters
        )
        groups = [_C.ParameterGroup() for _ in range(max(1, group_count))]
        self.core = _C.Engine(adapted, self.communicator, specs, groups)
        cast_buffers(self.module, dtype, self.communicator)
        load_parameters(self.core, self.layout, self.communicator)
        # Below stage 2 with one micro-step the bucket itself becomes the reduced gradient, so it
        # must not go out before all contributions are in.
        eager = self.zero_optimization_stage() >= 2 or self.batch.accumulation_steps > 1
        self.collector = _C.GradientCollector(self.core, eager)
        for parameter, index in self.layout.ids.items():
            if self.layout.is_trainable(parameter):
                hook = self.collector.hook(index)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))
        if self.zero_optimization_stage() == 3:
            self._gather_hooks = GatherHooks(self.module, self.core, self.layout)
        else:
            for parameter in self.layout.names:
                parameter.data = full_view(self.core, self.layout, parameter)
        self._announce_boundary()

    # --- the training loop ---

    def forward(self, *args: Any, **kwargs: Any) -> Any:
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
        self.scale(loss if scale_wrt_gas else loss * steps).backward(
            retain_graph=retain_graph, **kwargs
        )
        if self._is_eager():
            self.collector.end_micro_step()
            self._micro_step_ended = True
        return loss / steps if scale_wrt_gas and steps > 1 else loss

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
        if self.optimizer is None:
            raise _C.ConfigError(
                "step: this engine has no optimizer; give one to initialize or in the configuration"
            )
        if self._in_no_sync:
            raise _C.InternalError("It is illegal to call Engine.step() inside no_sync")
        boundary = self.is_gradient_accumulation_boundary()
        if self.collector.open or not self._micro_step_ended:
            self.collector.end_micro_step()
        if boundary:
            self._collect_late()
            self.last_step = self.optimizer.update()
            self.collector.stepped()
            self.global_steps += 1
            if self.lr_scheduler is not None and self.last_step.applied:
                self.lr_scheduler.step(**(lr_kwargs or {}))
        self.micro_steps += 1
        self._micro_step_ended = False
        self._announce_boundary()

    def _collect_late(self) -> None:
        """Gradients that came after their bucket had been sent, on any rank, go out now."""
        if not self._is_eager():
            return
        late = torch.tensor([int(self.collector.has_late)])
        self.communicator.all_reduce(late, "max", "whether gradients came late")
        if late.item():
            self.collector.collect_late()

    def _is_eager(self) -> bool:
        return self.collector.eager

    # --- accumulation ---

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the current micro-step completes a batch."""
        if self._in_no_sync:
            return False
        if self._boundary is not None:
            return self._boundary
        return (self.micro_steps + 1) % self.batch.accumulation_steps == 0

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
        if self.optimizer is None and not self._handles:
            return
        if self.collector.open and self._is_eager():
            self.collector.end_micro_step()
            self._micro_step_ended = True
        self.core.set_accumulation_boundary(self.is_gradient_accumulation_boundary())

    # --- the rest of a module ---

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing to do: gradients live in the engine, and a step ends them."""

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The model's own; at stage 3 parameters are empty outside of a gather."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        result = self.module.load_state_dict(*args, **kwargs)
        self.refresh_masters()
        return result

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
