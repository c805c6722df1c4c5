"""ZeroEngine: trains a PyTorch module whose states are sharded over the ranks."""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import reduced
from zerorun.config import BatchConfig, resolve_batch
from zerorun.hooks.parameter_memory import tensor_of
from zerorun.metrics.meter import StepMeter
from zerorun.model.buffers import hint_at_buffers
from zerorun.model.uncopied import Uncopied
from zerorun.optimizers.optimizer import compare_rates
from zerorun.program_warning import logger, warn
from zerorun.sequence.groups import data_parallel_size
from zerorun.sharded_module import ShardedModule
from zerorun.shards.shards import Policy, Shards, while_alive

if TYPE_CHECKING:
    from zerorun.dataloader import ResumableLoader
    from zerorun.monitor import MonitorMaster
    from zerorun.profiling import FlopsProfile

_CHECK_EVERY = 100  # steps; looking at the whole model costs more than a step should


class ZeroEngine(ShardedModule):
    """Trains a sharded model; made by :func:`zerorun.initialize` or :func:`zerorun.shard`.

    A micro-step is forward, backward and :meth:`step`. `step` updates the parameters when a batch
    of micro-steps is complete. The hooks are on the model, so forward may call the engine or the
    model itself (`module`), and backward :meth:`backward` or ``loss.backward()``.
    """

    _policy = Policy()
    flops_profile: FlopsProfile | None = None  # of `flops_profiler`, on rank 0

    def __init__(self, model: nn.Module, shards: Shards, batch: BatchConfig) -> None:
        super().__init__(model, shards)
        shards.serve(self)
        shards.until_closed(ModuleZeroGrad(model, while_alive(self.zero_grad)))
        self.batch = batch
        self._last_step: _C.StepResult | None = None
        self._micro_step_applied = False  # the last step() changed the parameters
        self._meter = StepMeter(self._core, model, self.communicator.world_size, self.device)
        self._is_scaled = False  # a loss of this micro-step
        # Whether the batch has nothing but the gradients of a backward that failed; None: no such.
        self._failed_alone: bool | None = None
        self.monitor: MonitorMaster  # of the configuration: initialize makes it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with hint_at_buffers(self.module):
            if not self.training:
                return super().__call__(*args, **kwargs)
            self._meter.work.saw_inputs(args, kwargs)
            with self._meter.forward:
                return super().__call__(*args, **kwargs)

    def backward(
        self,
        loss: torch.Tensor,
        retain_graph: bool = False,
        scale_wrt_gas: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Computes the gradients of `loss` and reduces them over the ranks. Collective.

        `loss`: a scalar tensor; it is multiplied by the loss scale (fp16). `retain_graph` and
        `kwargs`: for ``torch.Tensor.backward``. `scale_wrt_gas`: average the gradient over
        gradient_accumulation_steps; pass False if the program has divided the loss itself. Returns
        the loss, divided by gradient_accumulation_steps if `scale_wrt_gas`. Raises ConfigError if
        `loss` is not a scalar tensor, and after a failed backward that was not the batch's first.
        """
        if self._failed_alone:
            if self.communicator.rank == 0:
                logger.warning("the backward before this one failed: its gradients are discarded")
            self.drop_batch()
        self._check_passes("backward")
        steps = self.batch.accumulation_steps
        with self._meter.backward:
            whole = loss if scale_wrt_gas else loss * steps  # the core divides by the steps
            scaled = self.scale(whole)
            self._meter.saw_loss(whole)
            is_first = self._core.phase == "idle" and self._core.batch_micro_steps == 0
            try:
                scaled.backward(retain_graph=retain_graph, **kwargs)
            except BaseException as error:
                # Some of its gradients have arrived; after a CommError the job is at its end.
                if self._core.phase == "open" and not isinstance(error, _C.CommError):
                    self._failed_alone = is_first
                raise
            self._core.reduce_gradients()
            self._is_scaled = False
        return loss / steps if scale_wrt_gas and steps > 1 else loss

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns `loss` times the loss scale, for programs that call ``backward()`` themselves.

        Raises ConfigError if `loss` is not a scalar tensor.
        """
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            got = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss)
            raise _C.ConfigError(f"backward: got {got}, expected a loss, a scalar tensor")
        factor = self._core.loss_scale
        if factor == 1.0:
            return loss
        scaled = loss.float() * factor
        if scaled.requires_grad:

            def begins(_gradient: torch.Tensor) -> None:  # a backward at this loss
                self._check_scaled()
                self._is_scaled = True

            scaled.register_hook(begins)
        return scaled

    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        """Ends a micro-step; at the end of a batch updates the parameters. Collective.

        If a gradient is not finite, all ranks skip the update, and `skipped_steps` counts it. If no
        rank had a gradient since the last update, nothing changes, with a warning. `lr_kwargs`: for
        the scheduler's ``step()``. Raises ConfigError without an optimizer, after a loss without
        its scale, after a backward that failed, and if the model's parameters were replaced or
        added; raises the error of an asynchronous save that failed.
        """
        steps_before = self.global_steps
        with self._meter.step:
            self._step(lr_kwargs or {})
        if self._last_step is not None and self.global_steps > steps_before:
            self._meter.finish(self._last_step, self.global_steps, self.skipped_steps)

    def _step(self, lr_kwargs: dict[str, Any]) -> None:
        self._check_open("step")
        if self.optimizer is None:
            raise _C.ConfigError(
                "step: this engine has no optimizer; give one to initialize or in the configuration"
            )
        if self._core.no_sync:
            raise _C.InternalError("It is illegal to call Engine.step() inside no_sync")
        self._check_passes("step")
        self._check_scaled()
        self._end_stream("a step")
        self._micro_step_applied = False
        if self._core.is_last_micro_step:  # what is wrong shows before anything is used up
            self._layout.check_frozen()
            if self.global_steps % _CHECK_EVERY == 0:
                self._layout.check_unchanged(self.module)
            # Without a backward there may be gradients that the program made.
            self._shards.writes.check_assigned(everything=self._core.phase == "idle")
        self._shards.release_all()
        ended = self._core.end_micro_step()
        if ended:
            result = self.optimizer.update()
            if not result.had_gradient:
                warn("step() without a backward since the last one: nothing has changed")
                return
            self._last_step = result
            self._micro_step_applied = self._last_step.applied
            self.global_steps += 1
            if self.global_steps % _CHECK_EVERY == 0:
                compare_rates(self.optimizer.param_groups, self._shards.communicator)
            if hasattr(self.training_dataloader, "mark_used"):
                self.training_dataloader.mark_used()
            if not result.applied:
                _tell_skipped(self._shards, self.global_steps, result, self._meter.losses())
            if self.lr_scheduler is not None and self._last_step.applied:
                self.lr_scheduler.step(**lr_kwargs)
        self.micro_steps += 1
        samples = self.batch.train_batch_size // self.batch.accumulation_steps
        self._meter.finish_micro_step(samples, self.micro_steps)
        if ended:  # collective: only here have all ranks reduced what some of them had to
            self._shards.saver.poll()

    def _check_passes(self, what: str) -> None:
        """Raises ConfigError if gradients of a part of a backward are among the batch's."""
        if self._failed_alone is not None:
            raise _C.ConfigError(
                f"{what}: a backward of this batch failed and left a part of its gradients; "
                "restart the accumulation window: call engine.drop_batch() on every rank, then "
                "repeat the micro-steps of the batch"
            )

    def _check_scaled(self) -> None:
        """Raises ConfigError for a backward since the last reduction whose gradients the update
        would divide by a scale that they lack."""
        is_scaled, self._is_scaled = self._is_scaled, False
        if not is_scaled and self._core.loss_scale != 1.0 and self._core.phase == "open":
            raise _C.ConfigError(
                "step: Loss scaling is required for fp16, but backward() was called on a loss "
                "without it: use engine.backward(loss) or engine.scale(loss).backward()"
            )

    def _finish_reduction(self) -> bool:
        """Completes the reduction; True between a backward and the step, when gradients exist.
        Collective."""
        self._reduce_open()
        if self._core.phase == "idle":
            return False
        self._core.reduce_late_gradients()  # a second backward's, in the first such step
        return True

    def _reduce_open(self) -> None:
        """Reduces the gradients of a backward that the program called itself."""
        if self._core.phase == "open":
            self._check_scaled()
            self._core.reduce_gradients()

    # --- accumulation ---

    def is_gradient_accumulation_boundary(self) -> bool:
        """True if the current micro-step completes a batch."""
        return self._core.is_last_micro_step

    def set_batch(self, batch: BatchConfig) -> None:
        """Changes the batch sizes from the next batch on. Call it between batches on every rank."""
        if self._core.batch_micro_steps > 0 or self._core.phase == "open":
            raise _C.ConfigError("set_batch: the current batch is not complete; step first")
        self.batch = resolve_batch(batch, data_parallel_size(self.communicator.world_size))
        self._core.accumulation_steps = self.batch.accumulation_steps

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Declares whether the current micro-step completes a batch, until the next call.

        Replaces the counting of micro-steps. Call it before backward, on every rank.
        """
        self._reduce_open()
        self._core.boundary = bool(is_boundary)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Micro-steps inside do not complete a batch; step() inside is an error."""
        self._reduce_open()
        before = self._core.no_sync
        self._core.no_sync = True
        try:
            yield
        finally:
            self._reduce_open()
            self._core.no_sync = before

    # --- gradients and figures ---

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discards the gradients of a backward without a step, if every step ends a batch.
        Collective in that case. The model's own ``zero_grad()`` does the same.

        Gradients of accumulated micro-steps are kept, because loops with accumulation call this
        between micro-steps; to discard them use :meth:`drop_batch`. `set_to_none` has no effect.
        """
        counts = self._core.boundary is None and not self._core.no_sync
        if self.batch.accumulation_steps == 1 and counts:
            self.drop_batch()

    def drop_batch(self) -> None:
        """Discards all gradients since the last update. Collective."""
        self._core.drop_batch()
        self._is_scaled = False
        self._failed_alone = None
        self._meter.drop_batch()

    def metrics(self) -> dict[str, Any] | None:
        """The metrics of the last step, by the names of docs/metrics.md; None before the first."""
        return self._meter.metrics()

    def measure_peak(self) -> None:
        """Measures products of large matrices on all ranks, so that later metrics contain `mfu`.
        With `zerorun.metrics` in the configuration this is done automatically. Collective."""
        self._meter.work.measure_peak(self.communicator, self.device)
        self._meter.times.forget()

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> bool:
        with self._meter.checkpoint:
            return super().save_checkpoint(*args, **kwargs)

    save_checkpoint.__doc__ = ShardedModule.save_checkpoint.__doc__

    def make_dataloader(
        self,
        dataset: Any,
        batch_size: int,
        collate_fn: Callable[..., Any] | None = None,
        **options: Any,
    ) -> ResumableLoader:
        """A data loader with shuffled batches, of different samples on every rank. Its position is
        part of this engine's checkpoints: after :meth:`load_checkpoint` it goes on in the middle of
        an epoch, also on another number of ranks. Of several loaders this is the first, or the one
        that the program sets as ``engine.training_dataloader``.

        - `batch_size`: of one rank. `options`: those of torch's DataLoader, without samplers.

        Call ``loader.set_epoch(epoch)`` before each epoch, from ``loader.epoch`` on. Of an
        IterableDataset, which keeps its order, ranks take turns.
        """
        from zerorun.dataloader import make_dataloader

        self._check_open("make_dataloader")
        loader = make_dataloader(
            dataset, batch_size, self.communicator, collate_fn, self._meter.data, **options
        )
        if self.training_dataloader is None:
            self.training_dataloader = loader
        return loader

    def add_listener(self, listener: Callable[[dict[str, Any]], Any]) -> None:
        """Calls `listener` with the result of :meth:`metrics` after every later step of this rank.

        A listener that raises is removed, with a warning.
        """
        self._meter.add_listener(listener)

    def get_global_grad_norm(self) -> float | None:
        """The L2 norm of the last step's averaged gradient before clipping, inf if that was not
        finite; None before a step."""
        return None if self._last_step is None else self._last_step.grad_norm

    grad_norm = property(get_global_grad_norm)


def _of_its_class(module: nn.Module) -> Any:
    return types.MethodType(type(module).zero_grad, module)


class ModuleZeroGrad(Uncopied):
    """Takes the place of a module's method until remove(), so that it reaches the engine too.

    A loss that goes through a model of another engine (a discriminator) leaves gradients there,
    which the program forgets in this way. Copies and pickles of the module have its class's method.
    """

    def __init__(self, module: nn.Module, zero_grad: Callable[[], None]) -> None:
        self._module, self._zero_grad = module, zero_grad
        vars(module)["zero_grad"] = self

    def __call__(self, set_to_none: bool = True) -> None:
        _of_its_class(self._module)(set_to_none)
        self._zero_grad()

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_its_class, (self._module,)

    def remove(self) -> None:
        vars(self._module).pop("zero_grad", None)


# --- what is known of a gradient that was not finite, after the step that it skipped ---

_NO_RANK = 1 << 62


def _tell_skipped(shards: Shards, step: int, result: _C.StepResult, losses: list[float]) -> None:
    """Logs a line on rank 0. `losses`: this rank's, of the batch. Collective, but for a dynamic
    loss scale, which is found by skipping steps."""
    precision = shards.settings.precision
    scales = precision.param_dtype == "fp16" or precision.scales_loss
    if scales and precision.loss_scaler.static_scale == 0:
        if shards.ranks.job.rank == 0:
            then, now = result.loss_scale, shards.core.loss_scale
            text = "step %d was skipped: the gradient overflowed at loss scale %g%s"
            logger.info(text, step, then, "" if then == now else f", which is now {now:g}")
        return
    job = shards.ranks.job
    finite = all(map(math.isfinite, losses))
    places = [_first_parameter(shards), _NO_RANK if finite else job.rank]
    first = torch.tensor(places, device="cpu")
    job.all_reduce(first, "min", "a gradient that is not finite")
    seen = reduced(len(losses), job, "max", "losses of a skipped step")
    if job.rank > 0:
        return
    found, rank = first.tolist()
    part, index = divmod(found, 1 << 32)
    names = {i: shards.layout.names[parameter] for parameter, i in shards.layout.ids.items()}
    where = f", first that of {names[index]}" if index in names else ""
    if found != _NO_RANK and part != shards.ranks.part:
        where = f", first in part {part} of the model"
    because = "" if rank == _NO_RANK else f"; the loss of rank {rank} was not finite"
    if rank == _NO_RANK and seen > 0:
        because = "; the losses of all ranks were finite"
    logger.warning(
        "step %d was skipped on all ranks: the gradient is not finite%s%s", step, where, because
    )


def _first_parameter(shards: Shards) -> int:
    """The first parameter with an element that is not finite, of those that this rank stores, which
    are sums over the ranks: its part of the model and its index there."""
    for interval in shards.core.state_intervals():
        if interval.grad is not None and not tensor_of(interval.grad).isfinite().all():
            return shards.ranks.part << 32 | interval.parameter
    return _NO_RANK
