"""Computations over long sequences tile by tile, with one tile's intermediate values at a time.

A tile is computed again in backward (torch.utils.checkpoint), so that these are not kept. Autograd
adds up what the tiles give a parameter before an engine sees it: `compute_params`, by which
DeepSpeed is told to wait for the last tile, may be anything.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


def _reduced(tiles: list[torch.Tensor], dimension: int, reduction: str | None) -> torch.Tensor:
    whole = torch.stack(tiles) if dimension == 0 else torch.cat(tiles, dimension)
    if reduction is None:
        return whole
    if reduction not in {"mean", "sum"}:
        raise ValueError(f"output_reduction: got {reduction!r}, expected 'mean', 'sum' or None")
    return whole.mean() if reduction == "mean" else whole.sum()


def sequence_tiled_compute(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
    fn: Callable[..., torch.Tensor],
    seqlen: int,
    shards: int,
    kwargs_to_shard: Mapping[str, torch.Tensor],
    kwargs_to_pass: Mapping[str, Any],
    grad_requiring_tensor_key: str,
    compute_params: Any = None,
    output_unshard_dimension: int = 1,
    output_reduction: str | None = "mean",
) -> torch.Tensor:
    """``fn(**tile of kwargs_to_shard, **kwargs_to_pass)`` for each of `shards` tiles, put together.

    Tensors are [batch, seqlen, ...]. `output_unshard_dimension`: what results are concatenated
    along; 0 stacks them (scalars). `output_reduction`: "mean", "sum" or None, of all of it.
    """
    step = math.ceil(seqlen / shards)
    tiles = []
    for begin in range(0, seqlen, step):
        part = {key: value[:, begin : begin + step] for key, value in kwargs_to_shard.items()}
        tiles.append(checkpoint(fn, use_reentrant=False, **part, **kwargs_to_pass))
    return _reduced(tiles, output_unshard_dimension, output_reduction)


class TiledMLP:
    """A module's function of the tokens, in tiles; called through `apply`."""

    @staticmethod
    def apply(
        fn: Callable[[Any, torch.Tensor], torch.Tensor],
        self: Any,
        x: torch.Tensor,
        shards: int,
        compute_params: Any = None,
    ) -> torch.Tensor:
        """``fn(self, x)``, where `x` is [..., tokens, size]."""
        tiles = [checkpoint(fn, self, part, use_reentrant=False) for part in x.chunk(shards, -2)]
        return torch.cat(tiles, -2)


class TiledFusedLogitsLoss:
    """A loss whose logits are never there as a whole; called through `apply`."""

    @staticmethod
    def apply(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        fn: Callable[..., torch.Tensor],
        self: Any,
        x: torch.Tensor,
        y: torch.Tensor,
        mask: torch.Tensor | None,
        shards: int,
        compute_params: Any = None,
        output_reduction: str = "mean",
    ) -> torch.Tensor:
        """The mean or sum of ``fn(self, tile of x, tile of y[, tile of mask])`` over the tiles.

        `x` and `y` are [batch, tokens, ...], `mask` [batch, tokens]; in tiles these two are one.
        """
        if x.dim() < 2 or y.dim() < 2 or x.shape[:2] != y.shape[:2]:
            raise ValueError(
                f"TiledFusedLogitsLoss: got x of {tuple(x.shape)} and y of {tuple(y.shape)}, "
                "expected the same batch and tokens in front"
            )
        if mask is not None and mask.shape != x.shape[:2]:
            raise ValueError(
                f"TiledFusedLogitsLoss: got mask of {tuple(mask.shape)}, expected "
                f"{tuple(x.shape[:2])}"
            )
        given = [tensor for tensor in (x, y, mask) if tensor is not None]
        parts = zip(*(tensor.flatten(0, 1).chunk(shards) for tensor in given), strict=True)
        tiles = [checkpoint(fn, self, *part, use_reentrant=False) for part in parts]
        return _reduced(tiles, 0, output_reduction)
