"""Loss scalers for loops of the program's own; an engine has its own, `engine.loss_scale()`."""

from collections.abc import Iterable
from typing import Any

import torch

from deepspeed.runtime._norms import has_inf_or_nan


class LossScalerBase:
    """A scale, which the loss is multiplied with."""

    dynamic = False

    def __init__(self, cur_scale: float) -> None:
        self.cur_scale = cur_scale

    @property
    def loss_scale(self) -> float:
        return self.cur_scale

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.loss_scale

    def scale_gradient(self, module: Any, grad_in: Any, grad_out: Any) -> tuple[Any, ...]:
        return tuple(self.loss_scale * gradient for gradient in grad_in)

    def update_scale(self, overflow: bool) -> None:
        """Once per step, with what has_overflow() said; a static scale stays."""

    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> None:
        self.scale_loss(loss).backward(retain_graph=retain_graph)


class LossScaler(LossScalerBase):
    """A scale that stays."""

    def __init__(self, scale: float = 1) -> None:
        super().__init__(scale)

    @staticmethod
    def has_overflow(params: Iterable[torch.Tensor]) -> bool:
        """False: nobody looks."""
        return False


class DynamicLossScaler(LossScalerBase):
    """The scale doubles after `scale_window` steps without overflow. An overflow first uses up the
    hysteresis of `delayed_shift`, then halves the scale."""

    dynamic = True
    scale_factor = 2.0

    def __init__(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        self,
        init_scale: float,
        scale_window: int,
        min_scale: float,
        delayed_shift: int,
        consecutive_hysteresis: bool,
        raise_error_at_min_scale: bool = True,
        dtype: torch.dtype = torch.half,
    ) -> None:
        super().__init__(init_scale)
        self.cur_iter, self.last_overflow_iter = 0, -1
        self.scale_window, self.min_scale = scale_window, min_scale
        self.delayed_shift = self.cur_hysteresis = delayed_shift
        self.consecutive_hysteresis = consecutive_hysteresis
        self.raise_error_at_min_scale, self.dtype = raise_error_at_min_scale, dtype

    @staticmethod
    def has_overflow_serial(params: Iterable[torch.Tensor]) -> bool:
        return any(p.grad is not None and bool(has_inf_or_nan(p.grad)) for p in params)

    def update_scale(self, overflow: bool) -> None:
        """Once per step. Raises RuntimeError for an overflow at the smallest scale."""
        if overflow:
            self._shrink()
            self.last_overflow_iter = self.cur_iter
        else:
            self._grow()
        self.cur_iter += 1

    def _shrink(self) -> None:
        if self.cur_hysteresis > 1:
            self.cur_hysteresis -= 1
            return
        if self.cur_scale == self.min_scale and self.raise_error_at_min_scale:
            raise RuntimeError(f"the gradient overflows at the smallest scale, {self.cur_scale:g}")
        self.cur_scale = max(self.cur_scale / self.scale_factor, self.min_scale)

    def _grow(self) -> None:
        clean = self.cur_iter - self.last_overflow_iter - 1
        grows = clean > 0 and clean % self.scale_window == 0
        if grows or self.consecutive_hysteresis:
            self.cur_hysteresis = self.delayed_shift
        if grows:
            self.cur_scale *= self.scale_factor


def CreateLossScaler(  # noqa: N802 - DeepSpeed's name
    dtype: torch.dtype,
    static_loss_scale: float,
    dynamic_scaling: bool,
    dynamic_loss_args: dict[str, Any] | None,
) -> LossScalerBase:
    """A scaler for gradients of `dtype`: 1 for others than fp16."""
    if dtype != torch.half or not dynamic_scaling:
        return LossScaler(static_loss_scale if dtype == torch.half else 1.0)
    if dynamic_loss_args is None:
        raise AssertionError("CreateLossScaler: a dynamic scale needs dynamic_loss_args")
    return DynamicLossScaler(dtype=dtype, **dynamic_loss_args)


def to_python_float(t: Any) -> float:
    return t.item() if hasattr(t, "item") else t[0]
