"""zerorun.nn.linear_cross_entropy: a loss without all logits."""

import itertools
import math
from typing import Any

import peft
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from zerorun.nn import linear_cross_entropy

from cases.models import *

TOKENS, WIDTH, WORDS = 37, 16, 50


def inputs(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Hidden states, weight, bias, and labels of which some are ignored."""
    generator = torch.Generator().manual_seed(1)
    shapes = (TOKENS, WIDTH), (WORDS, WIDTH), (WORDS,)
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    labels = torch.randint(0, WORDS, (TOKENS,), generator=generator)
    labels[::5] = -100
    return [*(tensor.requires_grad_() for tensor in made), labels]


def whole(
    hidden: torch.Tensor, weight: Any, labels: torch.Tensor, z_loss: float = 0.0, **options: Any
) -> torch.Tensor:
    """As PyTorch computes it, with all logits."""
    bias = options.pop("bias", None)
    logits = F.linear(hidden, weight, bias) if isinstance(weight, torch.Tensor) else weight(hidden)
    counted = labels != options.get("ignore_index", -100)
    extra = z_loss * logits.logsumexp(-1)[counted].square()
    is_sum = options.get("reduction") == "sum"
    return F.cross_entropy(logits, labels, **options) + (extra.sum() if is_sum else extra.mean())


def gradients(loss: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(torch.autograd.grad(3 * loss, tensors))


def case_loss_and_gradients_are_those_of_all_logits() -> None:
    values = itertools.product((1, 10, 1000), (0.0, 0.1), (0.0, 1e-2), ("mean", "sum"))
    for chunk, smoothing, z_loss, reduction in values:
        hidden, weight, bias, labels = inputs()
        options = {"label_smoothing": smoothing, "z_loss": z_loss, "reduction": reduction}
        expected = whole(hidden, weight, labels, bias=bias, **options)
        found = linear_cross_entropy(hidden, weight, labels, bias=bias, chunk=chunk, **options)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
        tensors = [hidden, weight, bias]
        torch.testing.assert_close(gradients(found, tensors), gradients(expected, tensors))


def case_each_dtype_is_as_exact_as_torch() -> None:
    exact = whole(*inputs()[:2], inputs()[3])
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 1e-2), (torch.float16, 1e-3)):
        hidden, weight, _, labels = inputs(dtype)
        reference_ = whole(hidden.double(), weight.double(), labels)
        found = linear_cross_entropy(hidden, weight, labels, chunk=7)
        assert found.dtype == torch.float32
        assert abs(found.item() / reference_.item() - 1) <= tolerance
        found.backward()
        assert (hidden.grad.dtype, weight.grad.dtype) == (dtype, dtype)
    hidden, weight, _, labels = inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_cross_entropy(hidden, weight, labels)
        cast = F.cross_entropy(F.linear(hidden, weight).float(), labels)
    torch.testing.assert_close(found, cast)
    found.backward()
    assert weight.grad.dtype == torch.float32
    assert abs(found.item() / exact.item() - 1) <= 1e-2


def case_scaled_gradients_are_exact_in_fp16() -> None:
    """Of so many words and tokens that a probability by their number is no number of fp16."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(512, WIDTH, generator=generator)
    weight = 0.1 * torch.randn(8000, WIDTH, generator=generator)
    labels = torch.randint(0, 8000, (512,), generator=generator)
    scale = 2.0**14
    found, expected = (
        torch.autograd.grad(scale * loss, inputs)
        for inputs in ([t.half().requires_grad_() for t in (hidden, weight)],)
        for loss in (
            linear_cross_entropy(*inputs, labels, chunk=100),
            F.cross_entropy(F.linear(*(t.double() for t in inputs)), labels),
        )
    )
    for own, exact in zip(found, expected, strict=True):
        assert (own.double() - exact.double()).norm() <= 2e-3 * exact.double().norm()


class Products(TorchDispatchMode):
    """Counts products of matrices."""

    count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        return function(*args, **(kwargs or {}))


def case_gradients_are_made_where_they_are_asked_for_and_go_with_the_graph() -> None:
    hidden, weight, _, labels = inputs()
    with torch.no_grad(), Products() as products:
        linear_cross_entropy(hidden, weight, labels)
    assert products.count == 1
    loss = linear_cross_entropy(hidden, weight, labels)
    loss.backward()
    raises(RuntimeError, "backward through the graph a second time", loss.backward)


def case_no_labels_and_labels_of_other_ranks() -> None:
    hidden, weight, _, labels = inputs()
    empty = torch.full_like(labels, 7)
    loss = linear_cross_entropy(hidden, weight, empty, ignore_index=7)
    loss.backward()
    assert loss == 0
    assert not weight.grad.any()
    loss = linear_cross_entropy(hidden[:0], weight, labels[:0])
    assert loss == 0
    three = linear_cross_entropy(hidden[None, None], weight, labels[None, None])
    torch.testing.assert_close(three, linear_cross_entropy(hidden, weight, labels))


class Largest(TorchDispatchMode):
    """The elements of the largest tensor that is made."""

    most = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else [made]:
            if isinstance(each, torch.Tensor):
                self.most = max(self.most, each.numel())
        return made


def case_there_are_never_more_logits_than_a_chunk_has() -> None:
    hidden, weight, _, labels = inputs()
    with Largest() as largest:
        linear_cross_entropy(hidden, weight, labels, chunk=4).backward()
    assert largest.most == WORDS * WIDTH  # the weight's gradient
    with Largest() as largest:
        linear_cross_entropy(hidden, weight, labels).backward()
    assert largest.most == WORDS * TOKENS


class Body(nn.Module):
    """A model whose head is used by its loss alone."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.body(self.embedding(tokens[:, :-1]))
        if self.in_pieces:
            return linear_cross_entropy(hidden, self.head, tokens[:, 1:], chunk=5)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())

    in_pieces = True


class Tied(Body):
    def __init__(self) -> None:
        super().__init__(tied=True)


class Untied(Body):
    def __init__(self) -> None:
        super().__init__(tied=False)


def case_a_model_trains_with_it_at_every_stage() -> None:
    for kind in (Tied, Untied):
        Body.in_pieces = False
        expected, _ = reference(
            kind=kind, steps=4, loss_at=lambda model, step: model(batch_of(step))
        )
        Body.in_pieces = True
        for stage in STAGES:
            _, engine = started(config(stage), kind)
            losses = train(engine, 4, loss_at=lambda each, step: each(part_of(batch_of(step))))
            assert_close(losses, expected)


def case_the_head_is_gathered_once_however_many_tokens_a_rank_has() -> None:
    model = make(Untied)
    engine = shard(model, stage=3, optimizer=adamw(model), units=nn.Linear)
    found: list[str] = []
    for unit in engine._shards.gather_hooks.units:
        for method in (unit.acquire, unit.enter):

            def gather(*args: Any, unit: Any = unit, method: Any = method) -> None:
                if not unit.available:
                    found.append(unit.name)
                method(*args)

            setattr(unit, method.__name__, gather)
    tokens = part_of(batch_of(0))[:, : 3 + RANK]
    engine.backward(engine(tokens))
    assert found.count("head") == 1
    engine.step()


def case_heads_with_adapters() -> None:
    torch.manual_seed(0)
    config_ = peft.LoraConfig(r=4, target_modules=["head"], lora_alpha=16)
    model = peft.get_peft_model(nn.ModuleDict({"head": nn.Linear(WIDTH, WORDS)}), config_)
    head = model.base_model.model["head"].double()
    nn.init.normal_(head.lora_B["default"].weight)
    hidden, _, _, labels = inputs()
    for is_frozen in (True, False):
        head.base_layer.requires_grad_(not is_frozen)
        tensors = [hidden, *(p for p in head.parameters() if p.requires_grad)]
        expected = whole(hidden, head, labels)
        with Largest() as largest:
            found = linear_cross_entropy(hidden, head, labels, chunk=4)
            found_gradients = gradients(found, tensors)
        assert largest.most == WORDS * WIDTH
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(found_gradients, gradients(expected, tensors))
    config_ = peft.LoraConfig(r=4, target_modules=["head"], use_dora=True)
    model = peft.get_peft_model(nn.ModuleDict({"head": nn.Linear(WIDTH, WORDS)}), config_)
    text = "weight: got 'adapter default', expected LoRA without dropout, bias or variant"
    refuses(text, linear_cross_entropy, hidden, model.base_model.model["head"], labels)


def case_wrong_arguments() -> None:
    hidden, weight, _, labels = inputs()

    def refused(text: str, *given: Any, **options: Any) -> None:
        refuses(f"linear_cross_entropy: {text}", linear_cross_entropy, *given, **options)

    for chunk in (0, -1, 2.0, True, None):
        refused(f"chunk: got {chunk!r}, expected a number of", hidden, weight, labels, chunk=chunk)
    refused("reduction: got 'none'", hidden, weight, labels, reduction="none")
    refused("label_smoothing: got 2", hidden, weight, labels, label_smoothing=2)
    refused("labels: got '[36] of torch.int64', expected [37]", hidden, weight, labels[1:])
    refused("labels: got '[37] of torch.float64'", hidden, weight, labels.double())
    refused("hidden: got '[37, 16] of torch.int64'", hidden.long(), weight, labels)
    refused("hidden: got [37, 15], expected [..., 16]", hidden[:, 1:], weight, labels)
    refused("weight: got 'Conv1d', expected", hidden, nn.Conv1d(1, 1, 1), labels)
    for wrong in ("a", None):
        refused(f"weight: got '{type(wrong).__name__}', expected", hidden, wrong, labels)
    for wrong in (weight[0], weight[None], weight.long()):
        refused("weight: got '[", hidden, wrong, labels)
    refused("hidden: got 'list', expected a tensor", [1.0], weight, labels)
    refused("labels: got 'list', expected a tensor", hidden, weight, [1])
    for dtype in (torch.bool, torch.uint8):  # torch.gather takes neither
        refused(f"labels: got '[37] of {dtype}'", hidden, weight, labels.to(dtype))
    words = len(weight)
    for word in (words, -5):
        text = f"labels: got {word}, expected words from 0 to {words - 1}"
        refused(text, hidden, weight, torch.where(labels == labels[0], word, labels))
    refused("bias: got '[3] of", hidden, weight, labels, bias=torch.ones(3))
    refused("bias: got 'str'", hidden, weight, labels, bias="a")
    integers = torch.ones(weight.shape[0], dtype=torch.int64)
    refused("bias: got '[50] of torch.int64'", hidden, weight, labels, bias=integers)
    refused("weight: got [0, ", hidden, weight[:0], labels)
    refused("ignore_index: got None", hidden, weight, labels, ignore_index=None)
    refused("ignore_index: got 1", hidden, weight, labels, ignore_index=10**30)
    for wrong in ("a", True, math.nan, -1):
        for name in ("label_smoothing", "z_loss"):
            refused(f"{name}: got {wrong!r}", hidden, weight, labels, **{name: wrong})


def case_chunked_cross_entropy_is_that_of_all_logits() -> None:
    from deepspeed.runtime import chunked_cross_entropy as chunked

    hidden, weight, _, labels = inputs(torch.float32)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        for reduction in ("none", "sum", "mean"):
            found, wanted = ((hidden @ weight.T * 4).detach().to(dtype) for _ in range(2))
            found.requires_grad_(), wanted.requires_grad_()
            loss = chunked.chunked_cross_entropy(found, labels, reduction=reduction, block_rows=5)
            expected = F.cross_entropy(wanted.float(), labels, reduction=reduction)
            torch.testing.assert_close(loss, expected)
            loss.sum().backward()
            expected.sum().backward()
            torch.testing.assert_close(found.grad, wanted.grad, rtol=tolerance, atol=tolerance)
    logits = (hidden @ weight.T).detach()
    next_ones = chunked.ChunkedCausalLMLoss()(logits[None], labels[None], WORDS)
    torch.testing.assert_close(next_ones, F.cross_entropy(logits[:-1], labels[1:]))
    with pytest.raises(RuntimeError, match="needs CUDA logits and Triton"):
        chunked.chunked_cross_entropy(logits, labels, backend="triton")
    with pytest.raises(ValueError, match="block_rows"):
        chunked.ChunkedCausalLMLoss(block_rows=0)
