"""SequenceLoader: a data loader whose batches are shared by several ranks."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from zerorun import _C
from zerorun.sequence.groups import current

# Where the documents of a packed sequence begin and end; a flash attention reads them, for all
# tokens, since a rank has all of them there.
_BOUNDS = ("cu_seq_lens_q", "cu_seq_lens_k")


class SequenceLoader:
    """Splits the batches of a data loader among the ranks that share sequences.

    `loader` yields different batches on each rank: dictionaries of tensors [batch, tokens, ...]
    with ``input_ids``. The ranks of `group` process the batches of all of them one after the other,
    so this loader yields `size` times as many. Each rank gets [batch, tokens / size, ...], its
    consecutive part of the tokens, in host memory.

    - `rank`, `group`, `size`: of :class:`SequenceGroups`. `device`: for the group's communication.
    - ``labels`` become ``shift_labels``: the label of a token is the next token.
    - ``position_ids`` are added if they are missing; positions start at 0, and in packed sequences
      with ``cu_seq_lens_q`` (of transformers' DataCollatorWithFlattening) at each document's begin.
    - ``attention_mask`` is dropped; it may exclude only padding at the end, which no token sees.

    Collective over the group. Raises ConfigError on every rank of the group for batches that cannot
    be split: pad them on the right to a multiple of `size`.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        rank: int,
        group: Any,
        size: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.loader: Any = loader
        self._rank, self._group, self._size = rank, group, size
        self._device = torch.device(device)  # where the group communicates
        self._batches: Iterator[Any] | None = None
        self._parts: deque[dict[str, Any]] = deque()

    def __len__(self) -> int:
        return len(self.loader) * self._size

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not made yet
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._batches = iter(self.loader)
        self._parts.clear()
        return self

    def __next__(self) -> dict[str, Any]:
        if self._batches is None:
            iter(self)
        if not self._parts:
            assert self._batches is not None
            for batch in self._exchange(next(self._batches, None)):
                self._parts.append(self._cut(batch))
        part = self._parts.popleft()
        if hasattr(self.loader, "parts_left"):  # its position is saved
            self.loader.parts_left = len(self._parts)
        return part

    def _exchange(self, batch: Any) -> list[dict[str, Any]]:
        """Returns the batches of all ranks of the group. Collective over the group."""
        error = None if batch is None else _problem(batch, self._size)
        outline = None
        if batch is not None and not error:
            outline = {  # tensors without values, which will be broadcast
                name: torch.empty_like(value, device="meta") if torch.is_tensor(value) else value
                for name, value in batch.items()
            }
        found: list[Any] = [None] * self._size
        dist.all_gather_object(found, (error, outline), group=self._group)
        errors = [
            f"rank {rank} of the group: {error}" for rank, (error, _) in enumerate(found) if error
        ]
        if errors:
            raise _C.ConfigError(f"sequence parallelism: {errors[0]}")
        outlines = [outline for _, outline in found]
        if all(outline is None for outline in outlines):
            raise StopIteration
        if any(outline is None for outline in outlines):
            ended = outlines.index(None)
            raise _C.ConfigError(
                f"sequence parallelism: the loader of rank {ended} of the group ended before the "
                "others': give all ranks as many batches (drop_last=True)"
            )
        return [self._fetch(source, batch, outline) for source, outline in enumerate(outlines)]

    def _fetch(self, source: int, own: Any, outline: dict[str, Any]) -> dict[str, Any]:
        """Broadcasts the batch of one rank of the group."""
        root = dist.get_global_rank(self._group, source)
        batch: dict[str, Any] = {}
        for name, what in outline.items():
            if isinstance(what, torch.Tensor):
                value = torch.empty(what.shape, dtype=what.dtype, device=self._device)
                if source == self._rank:
                    value = own[name].to(self._device).contiguous()
                dist.broadcast(value, root, group=self._group)
                batch[name] = value
            else:
                batch[name] = what
        return batch

    def _cut(self, batch: dict[str, Any]) -> dict[str, Any]:
        ids = batch["input_ids"]
        batch.pop("attention_mask", None)
        if "position_ids" not in batch:
            batch["position_ids"] = _positions(ids, batch.get("cu_seq_lens_q"))
        if "labels" in batch:
            # -100: the label of a token that has no loss.
            batch["shift_labels"] = F.pad(batch.pop("labels"), (0, 1), value=-100)[..., 1:]
        length = ids.shape[1] // self._size
        own = slice(self._rank * length, (self._rank + 1) * length)
        for name, value in batch.items():
            if isinstance(value, torch.Tensor):
                part = value if name in _BOUNDS else value[:, own].contiguous()
                batch[name] = part.cpu()
        return batch


def _positions(ids: torch.Tensor, bounds: torch.Tensor | None) -> torch.Tensor:
    """Each token's distance from the first one of its document, [batch, tokens]."""
    index = torch.arange(ids.shape[1], device=ids.device)
    if bounds is not None:
        begins = bounds[:-1].to(index.dtype)
        index = index - begins[torch.searchsorted(begins, index, right=True) - 1]
    return index.expand(ids.shape)


def _problem(batch: Any, size: int) -> str | None:
    """Why a batch cannot be split into `size` parts; None if it can."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else batch
    if ids is batch or not isinstance(ids, torch.Tensor) or ids.dim() < 2:
        found = f"shape {tuple(ids.shape)}" if isinstance(ids, torch.Tensor) else type(ids).__name__
        return f"got {found}, expected a dictionary with input_ids, a tensor [batch, tokens]"
    batches, tokens = ids.shape[:2]
    if tokens % size != 0:
        return (
            f"{tokens} tokens cannot be cut into {size} equal parts: pad to a multiple of {size} "
            f"(the collator's pad_to_multiple_of={size})"
        )
    for name, value in batch.items():
        if name in _BOUNDS:
            bounds = value.tolist() if isinstance(value, torch.Tensor) and value.ndim == 1 else []
            ends = bounds[:1] + bounds[-1:]
            if batches != 1 or ends != [0, tokens] or bounds != sorted(bounds):
                return (
                    f"{name} is {value} for {batches} x {tokens} tokens, expected one sequence and "
                    f"bounds of its documents, a 1-D tensor that rises from 0 to {tokens}"
                )
        elif isinstance(value, torch.Tensor) and tuple(value.shape[:2]) != (batches, tokens):
            return (
                f"{name} has shape {tuple(value.shape)}, expected ({batches}, {tokens}, ...) as "
                "input_ids, to be cut with it"
            )
    mask = batch.get("attention_mask")
    if mask is not None and bool((mask[:, 1:] > mask[:, :-1]).any()):
        return "attention_mask leaves out tokens before others: pad on the right"
    return None


# --- the loss of a sequence whose parts are on several ranks ---


class _WeightedMean(torch.autograd.Function):
    """The sum of loss * count over the group, divided by the sum of counts.

    Backward multiplies by the size of the group. Each rank's backward gives its own part of the
    gradient, of which the sum over the group is needed, but engines average over all ranks.
    """

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, count: torch.Tensor, group: Any) -> torch.Tensor:
        has_any = count > 0  # the mean over no tokens is NaN
        weighted = torch.where(has_any, loss.double() * count, torch.zeros_like(loss.double()))
        sums = torch.stack([weighted, count.double()])
        dist.all_reduce(sums, group=group)
        total = sums[1].clamp(min=1)
        ctx.weight = (count / total * dist.get_world_size(group)).to(loss.dtype)
        return (sums[0] / total).to(loss.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradients[0] * ctx.weight, None, None


def mean_over_sequence(loss: torch.Tensor, count: torch.Tensor | int) -> torch.Tensor:
    """The mean loss over all tokens of a shared sequence, equal on all ranks that share it.

    `loss`: a scalar tensor, the mean over this rank's tokens with a label. `count`: the number of
    these tokens. Backward gives the gradient of the returned mean. Collective over the ranks that
    share a sequence. The loss of a sequence without any label is 0. Without sequence parallelism,
    other losses are returned as they are.
    """
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shown = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise _C.ConfigError(f"mean_over_sequence: loss: got {shown}, expected a scalar tensor")
    whole = isinstance(count, Real) and float(count).is_integer()
    if not isinstance(count, torch.Tensor) and not whole:
        raise _C.ConfigError(
            f"mean_over_sequence: count: got {count!r}, expected the number of tokens with a label"
        )
    groups = current()
    counts = torch.as_tensor(count, device=loss.device)
    if groups is None or groups.size == 1:
        return torch.where(counts > 0, loss, 0.0)  # the mean over no tokens is NaN
    return _WeightedMean.apply(loss, counts, groups.group)
