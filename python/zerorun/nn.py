"""Parts of models that need less memory than PyTorch's."""

import math
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from zerorun import _C
from zerorun.model.partition import gathered
from zerorun.program_warning import is_number

__all__ = ["linear_cross_entropy"]


class _Terms(NamedTuple):
    """How a token's loss is made of its logits."""

    ignore_index: int
    label_smoothing: float
    z_loss: float
    has_graph: bool  # so gradients may be asked for


class _Adapter(NamedTuple):
    """An addend of the weight: `scale` times b @ a."""

    a: torch.Tensor
    b: torch.Tensor
    scale: float


def linear_cross_entropy(  # noqa: PLR0913 - as torch's cross_entropy
    hidden: torch.Tensor,
    weight: torch.Tensor | nn.Module,
    labels: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    chunk: int = 1024,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
) -> torch.Tensor:
    """The cross entropy of ``hidden @ weight.T + bias`` with `labels`, without holding all logits.

    - `hidden`: [..., width], any floating dtype. `labels`: [...], integers.
    - `weight`: [vocabulary, width], perhaps the embedding's (tied); or the module that would make
      the logits: ``nn.Linear``, or PEFT's LoRA layer around one, whose dropout has to be 0.
    - `chunk`: tokens whose logits are in memory at once.
    - `ignore_index`, `label_smoothing`: as in ``torch.nn.functional.cross_entropy``.
    - `z_loss`: adds `z_loss` times the square of the logarithm of the softmax's denominator (PaLM,
      arXiv:2204.02311, section 5).
    - `reduction`: "mean" over labels that are not ignored (0 if there are none), or "sum".

    Returns a scalar, fp32 or fp64. Gradients are computed in forward, so backward needs neither
    logits nor weight: the extra memory is one chunk of logits, and gradients in fp32 of the weight
    and in its own dtype of `hidden`. Under autocast products have its dtype. At stage 3 the weight
    is gathered once, however many tokens a rank has. Raises ConfigError for wrong arguments.
    """
    weight, bias, adapters = _parts_of(weight, bias)
    _check(hidden, labels, chunk, reduction)
    if not is_number(ignore_index, Integral) or not -(2**63) <= ignore_index < 2**63:
        raise _fault("ignore_index", ignore_index, "an integer of 64 bits")
    if not (is_number(label_smoothing) and 0.0 <= label_smoothing <= 1.0):
        raise _fault("label_smoothing", label_smoothing, "a number from 0 to 1")
    if not (is_number(z_loss) and 0.0 <= z_loss < math.inf):
        raise _fault("z_loss", z_loss, "a number from 0 on")
    terms = _Terms(
        int(ignore_index), float(label_smoothing), float(z_loss), torch.is_grad_enabled()
    )
    tensors = [each for adapter in adapters for each in (adapter.a, adapter.b)]
    scales = [adapter.scale for adapter in adapters]
    given = [weight, *([] if bias is None else [bias]), *tensors]
    with gathered(given):
        _check_head(hidden, labels, weight, bias, ignore_index)
        return _LinearCrossEntropy.apply(
            hidden.flatten(0, -2),
            labels.flatten(),
            chunk,
            terms,
            reduction,
            scales,
            weight,
            bias,
            *tensors,
        )


def _check(hidden: Any, labels: Any, chunk: Any, reduction: Any) -> None:
    for name, given in (("hidden", hidden), ("labels", labels)):
        if not isinstance(given, torch.Tensor):
            raise _fault(name, type(given).__name__, "a tensor")
    if not is_number(chunk, Integral) or chunk < 1:
        raise _fault("chunk", chunk, "a number of tokens from 1 on")
    if reduction not in ("mean", "sum"):
        raise _fault("reduction", reduction, '"mean" or "sum"')
    if not hidden.is_floating_point() or hidden.dim() < 2:
        raise _fault("hidden", f"{list(hidden.shape)} of {hidden.dtype}", "[..., width] of floats")
    if labels.dtype not in {torch.int64, torch.int32} or labels.shape != hidden.shape[:-1]:
        expected = f"{list(hidden.shape[:-1])} of int64 or int32, a label for each row of hidden"
        raise _fault("labels", f"{list(labels.shape)} of {labels.dtype}", expected)


def _check_head(
    hidden: torch.Tensor,
    labels: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    ignore_index: int,
) -> None:
    """Checks what is known once the head is gathered."""
    if weight.dim() != 2 or not weight.is_floating_point():
        shown = f"{list(weight.shape)} of {weight.dtype}"
        raise _fault("weight", shown, "[vocabulary, width] of floats")
    words, width = weight.shape
    if words < 1:
        raise _fault("weight", list(weight.shape), "a vocabulary of at least one word")
    if hidden.shape[-1] != width:
        raise _fault("hidden", list(hidden.shape), f"[..., {width}], as the weight")
    if bias is not None and (bias.shape != (words,) or not bias.is_floating_point()):
        shown = f"{list(bias.shape)} of {bias.dtype}"
        raise _fault("bias", shown, f"[{words}] of floats, as the weight")
    if labels.device.type == "cpu":  # a GPU would be waited for
        wrong = (labels != ignore_index) & ((labels < 0) | (labels >= words))
        if wrong.any():
            expected = f"words from 0 to {words - 1}, or ignore_index, which is {ignore_index}"
            raise _fault("labels", int(labels[wrong][0]), expected)


def _fault(argument: str, got: Any, expected: str) -> _C.ConfigError:
    return _C.ConfigError(f"linear_cross_entropy: {argument}: got {got!r}, expected {expected}")


def _parts_of(
    weight: Any, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None, list[_Adapter]]:
    """Weight, bias, and the addends of a weight that an adapter changes."""
    if bias is not None and not isinstance(bias, torch.Tensor):
        raise _fault("bias", type(bias).__name__, "a tensor, or None")
    if isinstance(weight, torch.Tensor):
        return weight, bias, []
    base: Any = weight
    adapters = []
    if hasattr(weight, "lora_A"):
        layer: Any = weight
        base = layer.get_base_layer()
        active = [] if layer.merged or layer.disable_adapters else layer.active_adapters
        for name in active:
            if name not in layer.lora_A:
                continue
            drops = getattr(layer.lora_dropout[name], "p", 0.0) > 0 and layer.training
            if drops or layer.lora_variant.get(name) or layer.lora_B[name].bias is not None:
                raise _fault(
                    "weight", f"adapter {name}", "LoRA without dropout, bias or variant (DoRA ...)"
                )
            a, b = layer.lora_A[name].weight, layer.lora_B[name].weight
            adapters.append(_Adapter(a, b, layer.scaling[name]))
    if getattr(type(base), "forward", None) is not nn.Linear.forward:
        raise _fault(
            "weight", type(base).__name__, "a tensor, or a module with nn.Linear's forward"
        )
    return base.weight, base.bias if bias is None else bias, adapters


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes gradients in forward, a chunk of tokens at a time, as Liger Kernel does
    (arXiv:2410.10989, section 3.2)."""

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 - autograd passes by place
        ctx: Any,
        hidden: torch.Tensor,
        labels: torch.Tensor,
        chunk: int,
        terms: _Terms,
        reduction: str,
        scales: list[float],
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *adapters: torch.Tensor,
    ) -> torch.Tensor:
        needs = [needed and terms.has_graph for needed in ctx.needs_input_grad]
        kind = hidden.device.type
        is_cast = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if is_cast else hidden.dtype
        head = _Head(weight, bias, adapters, scales, dtype)
        gradients = _Gradients(head, hidden, needs[0], needs[6:])
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        count = (labels != terms.ignore_index).sum()
        divisor = count.clamp(min=1).to(exact) if reduction == "mean" else 1.0
        loss = torch.zeros((), dtype=exact, device=hidden.device)
        for begin in range(0, hidden.shape[0], chunk):
            rows = hidden[begin : begin + chunk].to(dtype)
            logits = head.logits(rows).to(exact)
            total, slope = _loss_and_slope(logits, labels[begin : begin + chunk], terms)
            loss += total
            if any(needs):
                gradients.add(begin, rows, slope.to(dtype))
        # Backward divides, after the scale of the loss: probability / tokens may be 0 in fp16.
        ctx.divisor = divisor
        ctx.dtypes, tensors = gradients.listed()
        ctx.save_for_backward(*tensors)
        return loss / divisor

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: torch.Tensor) -> tuple[Any, ...]:
        factor = given / ctx.divisor
        hidden, *parameters = (
            None if gradient is None else (gradient.to(factor.dtype) * factor).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return (hidden, None, None, None, None, None, *parameters)


class _Head:
    """Weight, bias and adapters in the dtype of the products."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        adapters: tuple[torch.Tensor, ...],
        scales: list[float],
        dtype: torch.dtype,
    ) -> None:
        self.given = [weight, bias, *adapters]
        self.weight = weight.to(dtype)
        self.bias = None if bias is None else bias.to(dtype)
        pairs = zip(adapters[::2], adapters[1::2], scales, strict=True)
        self.adapters = [_Adapter(a.to(dtype), b.to(dtype), scale) for a, b, scale in pairs]

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        made = torch.nn.functional.linear(rows, self.weight, self.bias)
        for a, b, scale in self.adapters:
            made += (rows @ a.T) @ b.T * scale
        return made


def _loss_and_slope(
    logits: torch.Tensor, labels: torch.Tensor, terms: _Terms
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of the tokens' losses, and its gradient, which takes the memory of the logits."""
    is_counted = labels != terms.ignore_index
    chosen = labels.masked_fill(~is_counted, 0).unsqueeze(1)
    normalizer = logits.logsumexp(1)
    losses = normalizer - (1 - terms.label_smoothing) * logits.gather(1, chosen).squeeze(1)
    if terms.label_smoothing:
        losses -= terms.label_smoothing * logits.mean(1)
    losses += terms.z_loss * normalizer.square()
    slope = logits.sub_(normalizer.unsqueeze(1)).exp_()  # the softmax
    if terms.z_loss:
        slope *= (1 + 2 * terms.z_loss * normalizer).unsqueeze(1)
    if terms.label_smoothing:
        slope -= terms.label_smoothing / logits.shape[1]
    ones = torch.full_like(chosen, 1, dtype=slope.dtype)
    slope.scatter_add_(1, chosen, (terms.label_smoothing - 1) * ones)
    slope.masked_fill_(~is_counted.unsqueeze(1), 0.0)
    return losses.masked_fill(~is_counted, 0.0).sum(), slope


class _Gradients:
    """Sums over chunks of the gradients that are needed, in fp32 at least."""

    def __init__(
        self, head: _Head, hidden: torch.Tensor, for_hidden: bool, needs: list[bool]
    ) -> None:
        self._head = head
        self._hidden = torch.empty_like(hidden) if for_hidden else None
        self._sums = [
            torch.zeros_like(each, dtype=torch.promote_types(each.dtype, torch.float32))
            if is_needed and each is not None
            else None
            for each, is_needed in zip(head.given, needs, strict=True)
        ]

    def add(self, begin: int, rows: torch.Tensor, slope: torch.Tensor) -> None:
        """`rows`: of hidden; `slope`: the gradient of their logits."""
        weight, bias, *pairs = self._sums
        _add_product(weight, slope.T, rows)
        if bias is not None:
            bias += slope.sum(0)
        to_rows = slope @ self._head.weight if self._hidden is not None else None
        for (a, b, scale), to_a, to_b in zip(
            self._head.adapters, pairs[::2], pairs[1::2], strict=True
        ):
            to_low = slope @ b * scale
            _add_product(to_a, to_low.T, rows)
            _add_product(to_b, slope.T, rows @ a.T * scale)
            if to_rows is not None:
                to_rows += to_low @ a
        if self._hidden is not None and to_rows is not None:
            self._hidden[begin : begin + len(rows)] = to_rows

    def listed(self) -> tuple[list[torch.dtype | None], list[torch.Tensor | None]]:
        """Of hidden and of what the head was given: the dtypes to come, and the gradients."""
        given = [self._hidden, *self._head.given]
        return [None if each is None else each.dtype for each in given], [self._hidden, *self._sums]


def _add_product(sum_: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor) -> None:
    if sum_ is None:
        return
    if sum_.dtype == left.dtype:
        sum_.addmm_(left, right)
    else:
        sum_ += left @ right
