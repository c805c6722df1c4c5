"""DistributedAttention: an attention of the program's over sequences that ranks share."""

import math
from typing import Any

import torch
import torch.distributed as dist
import zerorun
from zerorun import sequence

_HEADS = 2  # the dimension
_uneven: set[Any] = set()  # groups in which ranks have been given other numbers of heads


def heads_of_ranks(heads: int, size: int, num_kv_heads: int | None = None) -> list[int]:
    """The first ranks have one key-value head more where they are not divided evenly, and query
    heads stay with theirs."""
    basis = num_kv_heads or heads
    if basis < size or heads % basis != 0:
        raise AssertionError(
            f"sequence parallelism: got {heads} heads and {basis} key-value heads for {size} "
            "ranks, expected a multiple of the key-value heads, and one of them for each rank"
        )
    each, larger = divmod(basis, size)
    return [(each + (rank < larger)) * (heads // basis) for rank in range(size)]


def single_all_to_all(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
    input: torch.Tensor,  # noqa: A002 - DeepSpeed's name
    scatter_idx: int,
    gather_idx: int,
    batch_dim_idx: int,
    group: Any,
    async_op: bool = False,
    handle: Any = None,
    type: Any = None,  # noqa: A002 - likewise
    num_kv_heads: int | None = None,
) -> torch.Tensor:
    """Dimension `scatter_idx` goes to the ranks in parts, `gather_idx` comes from them. Collective.

    One of the two is 2, the heads, the other that of the tokens. `num_kv_heads`: of all ranks,
    where these do not divide the heads. NotImplementedError for `async_op`.
    """
    if async_op:
        raise NotImplementedError(
            "single_all_to_all(async_op=True) is not part of zerorun: leave it out, or use "
            "torch.distributed.all_to_all_single"
        )
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    shape = list(input.shape)
    if scatter_idx == _HEADS:
        counts = heads_of_ranks(shape[_HEADS], size, num_kv_heads)
        if len(set(counts)) > 1:
            _uneven.add(group)
        parts, received = input.split(counts, _HEADS), [counts[rank]] * size
    else:
        if shape[scatter_idx] % size != 0:
            raise zerorun.ConfigError(
                f"sequence parallelism: {size} ranks do not divide {shape[scatter_idx]} tokens"
            )
        parts, received = input.chunk(size, scatter_idx), [shape[_HEADS]] * size
        if num_kv_heads is not None:
            basis = heads_of_ranks(num_kv_heads, size)
            received = [shape[_HEADS] // basis[rank] * count for count in basis]
        elif group in _uneven:
            received = _heads_on(shape[_HEADS], input.device, group)
        shape[scatter_idx] //= size
    shapes = [(*shape[:_HEADS], heads, *shape[_HEADS + 1 :]) for heads in received]
    lengths = list(map(math.prod, shapes))
    output = input.new_empty(sum(lengths))
    dist.all_to_all_single(
        output,
        torch.cat([part.flatten() for part in parts]),
        lengths,
        [part.numel() for part in parts],
        group,
    )
    pieces = zip(output.split(lengths), shapes, strict=True)
    return torch.cat([piece.view(shape) for piece, shape in pieces], gather_idx)


def _heads_on(own: int, device: torch.device, group: Any) -> list[int]:
    """How many heads each rank has. Collective."""
    found = [torch.tensor([own], device=device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, torch.tensor([own], device=device), group)
    return [int(heads) for heads in found]


class _SeqAllToAll(torch.autograd.Function):
    """single_all_to_all with a gradient, which goes the other way."""

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 - likewise
        ctx: Any,
        group: Any,
        input: torch.Tensor,  # noqa: A002 - DeepSpeed's name
        scatter_idx: int,
        gather_idx: int,
        batch_dim_idx: int,
        stream: Any = None,
        handle: Any = None,
        type: Any = None,  # noqa: A002 - likewise
        is_fwd: bool = True,
        num_kv_heads: int | None = None,
    ) -> torch.Tensor:
        size = dist.get_world_size(group)
        if num_kv_heads is None and scatter_idx == _HEADS and input.shape[_HEADS] % size != 0:
            num_kv_heads = input.shape[_HEADS]
        ctx.back = (group, gather_idx, scatter_idx, batch_dim_idx, num_kv_heads)
        return single_all_to_all(
            input, scatter_idx, gather_idx, batch_dim_idx, group, num_kv_heads=num_kv_heads
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        group, *places, num_kv_heads = ctx.back
        rest = None, None, None, False, num_kv_heads
        gradient = _SeqAllToAll.apply(group, gradients[0], *places, *rest)
        return None, gradient, *[None] * 8


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
