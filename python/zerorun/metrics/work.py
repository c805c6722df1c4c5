"""StepWork: what a model's steps compute, and the most that its ranks reach."""

import time
from typing import Any

import torch
from torch import nn

from zerorun import _C


class StepWork:
    """The ranks' work in a step: tokens, and floating point operations.

    `counted`: of one rank's micro-step, forward and backward, where a profiler has counted it.
    `peak`: of all ranks together per second; None until :meth:`measure_peak`.
    """

    def __init__(self, model: nn.Module, world_size: int) -> None:
        self.counted: float | None = None
        self.peak: float | None = None
        self.tokens = 0  # of this rank, in the batch so far
        self.micro_steps = 0
        self._model = model
        self._world_size = world_size
        self._per_token: float | None = None

    def saw_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Counts tokens, where the input is a tensor of them."""
        given = kwargs.get("input_ids", args[0] if args else None)
        if isinstance(given, torch.Tensor) and given.dim() == 2 and not given.is_floating_point():
            self.tokens += given.numel()

    def count_forward(self, flops: float) -> None:
        """Adds the operations of one rank's forward pass; backward takes twice as many."""
        self.counted = 3.0 * flops  # of forward and backward

    def take(self, step_s: float) -> dict[str, float]:
        """The figures of a step that took so long, as far as they are known."""
        found = {}
        flops = self._flops()
        if self.tokens:
            found["tokens_per_s"] = self.tokens * self._world_size / step_s
        if flops is not None:
            found["flops"] = flops
            if self.peak is not None:
                found["mfu"] = flops / step_s / self.peak
        self.tokens = self.micro_steps = 0
        return found

    def _flops(self) -> float | None:
        """Operations of all ranks."""
        if self.counted is not None:
            return self.counted * self.micro_steps * self._world_size
        if self.tokens == 0:
            return None
        if self._per_token is None:
            self._per_token = flops_per_token(self._model)
        return self._per_token * self.tokens * self._world_size

    def measure_peak(self, communicator: _C.Communicator, device: torch.device) -> None:
        """Times products of large matrices on all ranks at once. Collective."""
        numbers = (p.dtype for p in self._model.parameters() if p.is_floating_point())
        dtype = next((each for each in numbers if each.itemsize > 1), torch.float32)
        rate = _products_per_s(device, dtype)
        total = torch.tensor([rate], dtype=torch.float32, device=device)
        communicator.all_reduce(total, "sum", "peak of the ranks")
        self.peak = total.item()


def flops_per_token(model: nn.Module) -> float:
    """Two per token and weight of a product with a matrix in forward, two in backward, and two more
    for the gradient of a weight that is trained. Attention's own products are left out."""
    weights = {
        id(weight): weight
        for module in model.modules()
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag)  # a look-up, unless it is tied
        for weight in module.parameters(recurse=False)
        if len(getattr(weight, "ds_shape", weight.shape)) >= 2
    }
    return float(
        sum(
            getattr(weight, "ds_numel", weight.numel()) * (6 if weight.requires_grad else 4)
            for weight in weights.values()
        )
    )


def _products_per_s(device: torch.device, dtype: torch.dtype) -> float:
    peak = 0.0
    for side in (256, 512, 1024, 2048, 4096):
        left, right = (torch.full((side, side), 0.5, dtype=dtype, device=device) for _ in range(2))
        seconds = 0.0
        for _ in range(3):
            begin = _now(device)
            torch.mm(left, right)
            seconds = _now(device) - begin
            peak = max(peak, 2.0 * side**3 / seconds)
        if seconds > 0.02:  # long enough for the clock
            break
    return peak


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
