"""The cross entropy of logits whose softmax in fp32 is only there for some rows at once."""

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

BACKENDS = ("auto", "triton", "torch")
_ELEMENTS = 1 << 24  # of a block, unless block_rows says how many rows it has


def triton_backend_available() -> bool:
    """False: rows are computed by PyTorch's operations everywhere."""
    return False


def _checked(block_rows: int | None, backend: str) -> None:
    if backend not in BACKENDS:
        raise ValueError(
            f"Unsupported chunked cross-entropy backend: got {backend!r}, expected one of "
            f"{BACKENDS}"
        )
    if block_rows is not None and operator.index(block_rows) < 1:
        raise ValueError(f"block_rows: got {block_rows}, expected a positive integer or None")


class _RowLosses(torch.autograd.Function):
    """Each row's loss; backward makes the softmax again."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, target: torch.Tensor, ignored: int, rows: int
    ) -> torch.Tensor:
        chosen = target.masked_fill(target == ignored, 0)
        sums = torch.cat([block.float().logsumexp(-1) for block in logits.split(rows)])
        losses = sums - logits.gather(-1, chosen[:, None]).squeeze(-1)
        ctx.save_for_backward(logits, target, chosen, sums)
        ctx.ignored, ctx.rows = ignored, rows
        return losses.masked_fill(target == ignored, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        logits, target, chosen, sums = ctx.saved_tensors
        slopes = slopes.masked_fill(target == ctx.ignored, 0.0)
        gradient = torch.empty_like(logits)
        parts = (tensor.split(ctx.rows) for tensor in (logits, chosen, sums, slopes, gradient))
        for block, label, sum_, slope, out in zip(*parts, strict=True):
            softmax = (block.float() - sum_[:, None]).exp()
            softmax[torch.arange(len(label), device=label.device), label] -= 1
            out.copy_(softmax * slope[:, None])
        return gradient, None, None, None


def chunked_cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    block_rows: int | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """torch's cross_entropy of [rows, vocabulary] in fp32, whose extra memory is that of
    `block_rows` rows in fp32 and of a gradient in the logits' dtype."""
    _checked(block_rows, backend)
    if backend == "triton":
        raise RuntimeError(
            "backend 'triton' needs CUDA logits and Triton's kernels, which zerorun does not have: "
            "use 'auto' or 'torch'"
        )
    if logits.dim() != 2 or target.shape != logits.shape[:1]:
        raise ValueError(
            f"got logits {tuple(logits.shape)} and targets {tuple(target.shape)}, expected [rows, "
            "vocabulary] and [rows]"
        )
    if reduction not in {"none", "sum", "mean"}:
        raise ValueError(f"Unsupported reduction: {reduction!r}")
    if target.dtype != torch.long:
        raise RuntimeError(f"got targets of {target.dtype}, expected torch.long")
    target = target.to(logits.device)
    rows = block_rows or max(1, _ELEMENTS // logits.shape[-1])
    losses = _RowLosses.apply(logits, target, ignore_index, rows)
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / (target != ignore_index).sum()


class ChunkedCausalLMLoss:
    """Stands for transformers' ForCausalLMLoss."""

    def __init__(self, block_rows: int | None = None, backend: str = "auto") -> None:
        _checked(block_rows, backend)
        self.block_rows, self.backend = block_rows, backend

    def __call__(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor | None,
        vocab_size: int,
        num_items_in_batch: torch.Tensor | int | None = None,
        ignore_index: int = -100,
        shift_labels: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        if shift_labels is None:  # each token predicts the next one
            shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        loss = chunked_cross_entropy(
            logits.reshape(-1, vocab_size),
            shift_labels.reshape(-1),
            ignore_index,
            "mean" if num_items_in_batch is None else "sum",
            self.block_rows,
            self.backend,
        )
        if num_items_in_batch is None:
            return loss
        return loss / torch.as_tensor(num_items_in_batch, device=loss.device)


def install_chunked_causal_lm_loss(
    model: Any, block_rows: int | None = None, backend: str = "auto"
) -> ChunkedCausalLMLoss:
    """Gives the loss to a causal language model of transformers that has its own one."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    found = getattr(model, "loss_function", None)
    if found is not ForCausalLMLoss:
        raise ValueError(
            "install_chunked_causal_lm_loss replaces the stock Hugging Face ForCausalLMLoss, and "
            f"this model's loss_function is {found!r}"
        )
    model.loss_function = ChunkedCausalLMLoss(block_rows, backend)
    return model.loss_function
