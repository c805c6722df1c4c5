"""Ulysses for Hugging Face models, on zerorun.sequence, and computations in tiles.

A tile has one tile's intermediate values at a time: it is computed again in backward
(torch.utils.checkpoint), so that these are not kept. Autograd adds up what the tiles give a
parameter before an engine sees it: `compute_params`, by which DeepSpeed is told to wait for the
last tile, may be anything.
"""

import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
import zerorun
from torch.utils.checkpoint import checkpoint
from zerorun import sequence

from deepspeed.runtime.sequence_parallel import parallel_state_sp


class UlyssesSPAttentionHF(torch.nn.Module):
    """Attention over sequences that ranks share; :meth:`register_with_transformers` puts it in.

    Made by the program it is a function of Hugging Face's attention interface around `attn`, for
    the ranks of `process_group`, whose result is [batch, own tokens, heads * size]. How many heads
    there are is taken from what it is called with.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        self,
        attn: Any,
        batch_size: int,
        attn_head_count: int,
        attn_head_size: int,
        kv_head_count: int,
        num_hidden_layers: int,
        process_group: Any,
        seq_length_is_variable: bool = False,
        local_seq_length: int | None = None,
        global_seq_length: int | None = None,
        disable_in_eval: bool = False,
    ) -> None:
        super().__init__()
        self.attn = attn
        self.process_group = process_group
        self.world_size = torch.distributed.get_world_size(process_group)
        self.sp_rank = torch.distributed.get_rank(process_group)
        self.attn_head_count, self.global_kv_head_count = attn_head_count, kv_head_count
        self.attn_head_size, self.num_hidden_layers = attn_head_size, num_hidden_layers
        _check_heads(attn_head_count, kv_head_count, self.world_size)
        self._shared = sequence.SharedAttention(
            attn,
            getattr(attn, "__name__", ""),
            sequence.SequenceGroups.of(process_group),
            tokens=None if seq_length_is_variable else global_seq_length,
            disable_in_eval=disable_in_eval,
        )

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Computes attention of (module, query, key, value, mask, ...).

        Query, key and value are [batch, heads, own tokens, size].
        """
        context, weights = self._shared(*args, **kwargs)
        return context.flatten(2), weights

    @classmethod
    def register_with_transformers(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        cls,
        model_name_or_path: Any,
        core_attn_implementation: str,
        sequence_parallel_size: int,
        micro_batch_size: int,
        seq_length: int | None = None,
        seq_length_is_variable: bool = True,
        disable_in_eval: bool = False,
        max_length: int | None = None,
    ) -> ModuleType | None:
        """Makes the ranks share sequences; returns the mpu for deepspeed.initialize. Collective.

        `micro_batch_size` may be any. `max_length` is an older name of `seq_length`. With a size of
        1 nothing happens, and the mpu is None. Raises ConfigError, a ValueError.
        """
        if sequence_parallel_size == 1:
            return None
        tokens = None if seq_length_is_variable else seq_length or max_length
        if tokens is None and not seq_length_is_variable:
            raise zerorun.ConfigError(
                "Either `seq_length_is_variable` needs to be `True` or `seq_length` needs to be set"
            )
        config = _config_of(model_name_or_path, core_attn_implementation)
        parallel_state_sp.initialize_sequence_parallel(sequence_parallel_size)
        sequence.use_with_transformers(
            config, core_attn_implementation, tokens=tokens, disable_in_eval=disable_in_eval
        )
        return parallel_state_sp


def _check_heads(heads: int, kv_heads: int, ranks: int) -> None:
    """Raises ConfigError for heads that the ranks cannot divide among them."""
    if heads % ranks:
        raise zerorun.ConfigError(
            f"attention head count {heads} is not divisible by the {ranks} ranks of a sequence"
        )
    if kv_heads % ranks and ranks % kv_heads:
        raise zerorun.ConfigError(
            f"KV attention head count {kv_heads} does not divide the {ranks} ranks of a sequence, "
            "nor they it"
        )


def _config_of(model: Any, implementation: str) -> Any:
    if not hasattr(model, "config"):
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(model)
    found = getattr(model.config, "_attn_implementation", None)
    if found is not None and found != implementation:
        raise zerorun.ConfigError(
            f"core_attn_implementation='{implementation}' does not match the model's "
            f"attn_implementation='{found}': set both to the same value"
        )
    return model.config


class UlyssesSPDataLoaderAdapter(sequence.SequenceLoader):
    """A loader whose batches the ranks of a group share, each its part of the tokens."""

    def __init__(
        self, dl: Any, sp_rank: int, sp_group: Any, sp_world_size: int, device: Any
    ) -> None:
        super().__init__(dl, sp_rank, sp_group, sp_world_size, device)
        self.dl = dl


# --- tiles ---


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
