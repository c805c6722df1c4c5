"""DistributedAttention: an attention of the program's over sequences that ranks share."""

from typing import Any

import torch
import zerorun
from zerorun import sequence

from deepspeed.sequence._exchange import _SeqAllToAll, single_all_to_all

__all__ = ["DistributedAttention", "single_all_to_all"]


class DistributedAttention(torch.nn.Module):
    """Calls `local_attention` with all tokens of this rank's heads.

    Tensors are [tokens, batch, heads, size], or [batch, tokens, heads, size] with
    `gather_idx` 1 as for flash attention; `scatter_idx` is 2, where the heads are. The result of
    `local_attention` is laid out like the query.
    """

    def __init__(
        self,
        local_attention: Any,
        sequence_process_group: Any,
        scatter_idx: int = 2,
        gather_idx: int = 0,
        sp_stream: Any = None,
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        if scatter_idx != 2 or gather_idx not in (0, 1):
            raise zerorun.ConfigError(
                f"DistributedAttention: got scatter_idx={scatter_idx} and gather_idx={gather_idx}, "
                "expected heads in dimension 2 and tokens in dimension 0 or 1"
            )
        self.local_attn = local_attention
        self.spg = sequence_process_group
        self.scatter_idx, self.gather_idx = scatter_idx, gather_idx
        self.num_kv_heads = num_kv_heads
        self._groups = sequence.SequenceGroups.of(self.spg)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        batch_dim_idx: int | None = None,
        rotary_pos_emb: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """The attention of this rank's tokens, laid out like `query`. Collective."""
        if rotary_pos_emb is not None:
            raise NotImplementedError(
                "DistributedAttention: rotary_pos_emb is not part of zerorun: apply the rotation "
                "to query and key before"
            )
        batch_first = self.gather_idx == 1
        if any(tensor.shape[2] % self._groups.size != 0 for tensor in (query, key)):
            return self._with_uneven_heads([query, key, value], *args, **kwargs)

        def to_heads(tensor: torch.Tensor) -> torch.Tensor:  # [batch, heads, tokens, size]
            return tensor.transpose(1, 2) if batch_first else tensor.permute(1, 2, 0, 3)

        def core(*tensors: torch.Tensor) -> torch.Tensor:
            order = (0, 2, 1, 3) if batch_first else (2, 0, 1, 3)
            context = self.local_attn(*(t.permute(order) for t in tensors), *args, **kwargs)
            return context if batch_first else context.transpose(0, 1)

        found = sequence.attend(core, self._groups, *map(to_heads, (query, key, value)))
        return found if batch_first else found.transpose(0, 1)

    def _with_uneven_heads(
        self, tensors: list[torch.Tensor], *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """As forward(); some ranks have a key-value head more, with its query heads."""
        tokens, heads = self.gather_idx, self.scatter_idx
        total = self.num_kv_heads or tensors[1].shape[heads]

        def exchanged(tensor: torch.Tensor, scatter: int, gather: int) -> torch.Tensor:
            batch = 0 if tokens == 1 else 1
            rest = (None, None, None, True, total)
            return _SeqAllToAll.apply(self.spg, tensor, scatter, gather, batch, *rest)

        own = (exchanged(tensor, heads, tokens) for tensor in tensors)
        return exchanged(self.local_attn(*own, *args, **kwargs), tokens, heads)
