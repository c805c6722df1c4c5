"""ModelFlops: floating point operations of a model's steps, and the most that its ranks reach."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import nn

from zerorun import _C

__all__ = ["ModelFlops", "flops_per_token"]

_SIDES = (256, 512, 1024, 2048, 4096)  # of the matrices whose products are timed
_REPETITIONS = 3
_LONG_ENOUGH_S = 0.02  # of one product
_MATRIX = 2  # dimensions
_FORWARD_AND_BACKWARD = 3.0  # by the operations of forward alone


class ModelFlops:
    """What a step of all ranks computes.

    `counted`: of one rank's micro-step, forward and backward, where a profiler has counted it.
    `peak`: of all ranks together per second; None until :meth:`measure_peak`.
    """

    def __init__(self, model: nn.Module, world_size: int) -> None:
        self.counted: float | None = None
        self.peak: float | None = None
        self._model = model
        self._world_size = world_size
        self._per_token: float | None = None

    def count_forward(self, flops: float) -> None:
        """Of one rank's forward pass; backward takes two more."""
        self.counted = _FORWARD_AND_BACKWARD * flops

    def of_step(self, tokens: int, micro_steps: int) -> float | None:
        """Of all ranks, for one rank's tokens; None where neither they nor `counted` are known."""
        if self.counted is not None:
            return self.counted * micro_steps * self._world_size
        if tokens == 0:
            return None
        if self._per_token is None:
            self._per_token = flops_per_token(self._model)
        return self._per_token * tokens * self._world_size

    def measure_peak(self, communicator: _C.Communicator, device: torch.device) -> None:
        """Times products of large matrices on all ranks at once. Collective."""
        dtype = next((p.dtype for p in self._model.parameters()), torch.float32)
        total = torch.tensor([_products_per_s(device, dtype)], device=device)
        communicator.all_reduce(total, "sum", "peak of the ranks")
        self.peak = total.item()


def flops_per_token(model: nn.Module) -> float:
    """Two per token and weight of a product with a matrix in forward, two in backward, and two more
    for the gradient of a weight that is trained. Attention's own products are left out."""
    weights = {id(weight): weight for weight in _matrices(model)}
    return float(
        sum(
            getattr(weight, "ds_numel", weight.numel()) * (6 if weight.requires_grad else 4)
            for weight in weights.values()
        )
    )


def _matrices(model: nn.Module) -> Iterator[nn.Parameter]:
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):  # a look-up; tied, it is a product's
            continue
        for parameter in module.parameters(recurse=False):
            if len(getattr(parameter, "ds_shape", parameter.shape)) >= _MATRIX:
                yield parameter


def _products_per_s(device: torch.device, dtype: torch.dtype) -> float:
    peak = 0.0
    for side in _SIDES:
        left, right = (torch.full((side, side), 0.5, dtype=dtype, device=device) for _ in range(2))
        seconds = 0.0
        for _ in range(_REPETITIONS):
            begin = _now(device)
            torch.mm(left, right)
            seconds = _now(device) - begin
            peak = max(peak, 2.0 * side**3 / seconds)
        if seconds > _LONG_ENOUGH_S:
            break
    return peak


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
