"""Notices what a step computes from many elements at once."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Of these a result may be smaller and yet says nothing of all elements.
_SELECTS = {"index", "masked_select", "new_empty", "new_full", "new_ones", "new_zeros"}


class WholeTensors(TorchDispatchMode):
    """Within, `noticed` becomes the first operation whose result has fewer numbers than it took.

    Such are norms, means, and the products of a matrix with itself; what treats elements alike does
    none of these. Comparisons and kernels of the program's own stay unnoticed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noticed: str | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        aliases = any(value.alias_info is not None for value in func._schema.returns)
        if func.namespace == "aten" and not aliases and name not in _SELECTS:
            taken = max((_numel(each) for each in (*args, *(kwargs or {}).values())), default=0)
            if 0 < _numel(result) < taken:
                self.noticed = self.noticed or name
        return result


def _numel(values: Any) -> int:
    """Counts elements of floating-point tensors in a tensor, a list of them, or anything else."""
    leaves = tree_leaves(values)
    tensors = (each for each in leaves if isinstance(each, torch.Tensor))
    return sum(tensor.numel() for tensor in tensors if tensor.is_floating_point())
