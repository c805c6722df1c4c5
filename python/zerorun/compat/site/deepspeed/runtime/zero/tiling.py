"""Linear layers in tiles, so that at stage 3 only one tile's weights are gathered at a time."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from deepspeed.runtime.utils import partition_uniform


def split_tensor_along_last_dim(
    tensor: torch.Tensor, partitions: Sequence[int], contiguous_split_chunks: bool = False
) -> tuple[torch.Tensor, ...]:
    """Parts of the last dimension; `partitions` are where they begin, and its size."""
    sizes = [end - begin for begin, end in itertools.pairwise(partitions)]
    parts = torch.split(tensor, sizes, dim=-1)
    return tuple(part.contiguous() for part in parts) if contiguous_split_chunks else parts


class TiledLinear(nn.Module):
    """A linear layer of in_splits x out_splits smaller ones; out(x) = sum over inputs, by output.

    `input_is_already_split`: forward takes the parts. `combine_out_splits` False: it returns them.
    `linear_cls` makes a tile, with `kwargs`; `init_linear` is a layer to copy the values from.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        in_splits: int = 1,
        out_splits: int = 1,
        input_is_already_split: bool = False,
        combine_out_splits: bool = True,
        linear_cls: Callable[..., nn.Module] = nn.Linear,
        init_linear: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        for name, splits, size in (
            ("in_splits", in_splits, in_features),
            ("out_splits", out_splits, out_features),
        ):
            if not 1 <= splits <= size:
                raise RuntimeError(f"TiledLinear: got {name}={splits}, expected 1 to {size}")
        self.in_features, self.out_features, self.use_bias = in_features, out_features, bias
        self.in_splits, self.out_splits = in_splits, out_splits
        self.input_is_already_split = input_is_already_split
        self.combine_out_splits = combine_out_splits
        self.in_parts = partition_uniform(in_features, in_splits)
        self.out_parts = partition_uniform(out_features, out_splits)
        self.linears = nn.ModuleList(
            nn.ModuleList(
                linear_cls(
                    self.in_parts[column + 1] - self.in_parts[column],
                    self.out_parts[row + 1] - self.out_parts[row],
                    bias=bias and column == in_splits - 1,  # once for each output
                    **kwargs,
                )
                for column in range(in_splits)
            )
            for row in range(out_splits)
        )
        if init_linear is not None:
            self.copy_params_from(init_linear)

    def forward(self, input_: Any) -> Any:
        if self.in_splits > 1 and not self.input_is_already_split:
            input_ = split_tensor_along_last_dim(input_, self.in_parts)
        elif self.in_splits == 1 and not isinstance(input_, list | tuple):
            input_ = [input_]
        if len(input_) != self.in_splits:
            raise RuntimeError(f"TiledLinear: got {len(input_)} parts, expected {self.in_splits}")
        outputs = [self._output(row, input_) for row in self.linears]
        return self._combine(outputs) if self.combine_out_splits else outputs

    def _output(self, row: nn.ModuleList, parts: Sequence[torch.Tensor]) -> Any:
        products = [tile(part) for tile, part in zip(row, parts, strict=True)]
        return sum(products[1:], products[0])

    def _combine(self, outputs: list[Any]) -> Any:
        return torch.cat(outputs, dim=-1)

    @torch.no_grad()
    def copy_params_from(self, other: nn.Linear) -> None:
        """The values of one layer of the same size."""
        expected = (self.out_features, self.in_features)
        if tuple(other.weight.shape) != expected or (other.bias is not None) != self.use_bias:
            raise RuntimeError(
                f"TiledLinear: got a layer of {tuple(other.weight.shape)}, expected {expected} and "
                f"{'a' if self.use_bias else 'no'} bias"
            )
        for row, (top, bottom) in enumerate(itertools.pairwise(self.out_parts)):
            for column, tile in enumerate(self.linears[row]):
                left, right = self.in_parts[column : column + 2]
                tile.weight.copy_(other.weight[top:bottom, left:right])
            if self.use_bias:
                self.linears[row][-1].bias.copy_(other.bias[top:bottom])


class TiledLinearReturnBias(TiledLinear):
    """For tiles that return (product, bias), as Megatron's do; returns (output, bias)."""

    def _output(self, row: nn.ModuleList, parts: Sequence[torch.Tensor]) -> Any:
        pairs = [tile(part) for tile, part in zip(row, parts, strict=True)]
        total = sum((product for product, _ in pairs[1:]), pairs[0][0])
        return total, next((bias for _, bias in reversed(pairs) if bias is not None), None)

    def _combine(self, outputs: list[Any]) -> Any:
        biases = [bias for _, bias in outputs if bias is not None]
        combined = torch.cat([product for product, _ in outputs], dim=-1)
        return combined, torch.cat(biases, dim=-1) if biases else None
