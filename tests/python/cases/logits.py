"""zerorun.nn.linear_cross_entropy: a loss without all logits."""

import peft
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


def whole(hidden: Any, weight: Any, labels: Any, z_loss=0.0, **options: Any) -> torch.Tensor:
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
    given = [tensor.half().requires_grad_() for tensor in (hidden, weight)]
    loss = linear_cross_entropy(*given, labels, chunk=100)
    exact_loss = F.cross_entropy(F.linear(*(tensor.double() for tensor in given)), labels)
    found, expected = (torch.autograd.grad(scale * each, given) for each in (loss, exact_loss))
    for own, exact in zip(found, expected, strict=True):
        assert (own.double() - exact.double()).norm() <= 2e-3 * exact.double().norm()


class Watch(TorchDispatchMode):
    products = largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else [made]:
            if isinstance(each, torch.Tensor):
                self.largest = max(self.largest, each.numel())
        return made


def case_gradients_are_made_where_they_are_asked_for_and_go_with_the_graph() -> None:
    hidden, weight, _, labels = inputs()
    with torch.no_grad(), Watch() as watch:
        linear_cross_entropy(hidden, weight, labels)
    assert watch.products == 1
    loss = linear_cross_entropy(hidden, weight, labels)
    loss.backward()
    raises(RuntimeError, "backward through the graph a second time", loss.backward)


def case_no_labels_and_labels_of_other_ranks() -> None:
    hidden, weight, _, labels = inputs()
    loss = linear_cross_entropy(hidden, weight, torch.full_like(labels, 7), ignore_index=7)
    loss.backward()
    assert (loss, weight.grad.any()) == (0, False)
    assert linear_cross_entropy(hidden[:0], weight, labels[:0]) == 0
    three = linear_cross_entropy(hidden[None, None], weight, labels[None, None])
    torch.testing.assert_close(three, linear_cross_entropy(hidden, weight, labels))


def case_there_are_never_more_logits_than_a_chunk_has() -> None:
    hidden, weight, _, labels = inputs()
    # With small chunks the weight's gradient is the largest.
    for options, most in (({"chunk": 4}, WORDS * WIDTH), ({}, WORDS * TOKENS)):
        with Watch() as watch:
            linear_cross_entropy(hidden, weight, labels, **options).backward()
        assert watch.largest == most


class Body(Model):
    """Its head is used by the loss alone."""

    in_pieces = True

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            hidden = block(hidden)
        if self.in_pieces:
            return linear_cross_entropy(hidden, self.head, tokens[:, 1:], chunk=5)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())


def body(tied: bool = False) -> nn.Module:
    model = Body()
    if not tied:
        model.head = nn.Linear(32, VOCABULARY)
    return model


def case_a_model_trains_with_it_at_every_stage() -> None:
    def loss_at(model: nn.Module, step: int) -> torch.Tensor:
        tokens = batch_of(step)
        return model(tokens if isinstance(model, Body) else part_of(tokens))

    for tied in (True, False):
        Body.in_pieces = False
        expected, _ = reference(kind=lambda: body(tied), steps=4, loss_at=loss_at)
        Body.in_pieces = True
        for stage in STAGES:
            _, engine = started(config(stage), lambda: body(tied))
            assert_close(train(engine, 4, loss_at=loss_at), expected)


def case_the_head_is_gathered_once_however_many_tokens_a_rank_has() -> None:
    model = make(body)
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
        with Watch() as watch:
            found = linear_cross_entropy(hidden, head, labels, chunk=4)
            found_gradients = gradients(found, tensors)
        assert watch.largest == WORDS * WIDTH
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(found_gradients, gradients(expected, tensors))
    config_ = peft.LoraConfig(r=4, target_modules=["head"], use_dora=True)
    model = peft.get_peft_model(nn.ModuleDict({"head": nn.Linear(WIDTH, WORDS)}), config_)
    text = "weight: got 'adapter default', expected LoRA without dropout, bias or variant"
    refuses(text, linear_cross_entropy, hidden, model.base_model.model["head"], labels)


def case_wrong_arguments() -> None:
    hidden, weight, _, labels = inputs()
    right = {"hidden": hidden, "weight": weight, "labels": labels}
    ignored = labels == -100
    for name, value, got in (
        *(("chunk", value, f"{value}, expected a number of") for value in (0, -1, 2.0, True, None)),
        ("reduction", "none", "'none'"),
        ("label_smoothing", 2, "2"),
        *(("label_smoothing", value, repr(value)) for value in ("a", True, math.nan, -1)),
        *(("z_loss", value, repr(value)) for value in ("a", True, math.nan, -1)),
        ("ignore_index", None, "None"),
        ("ignore_index", 10**30, "1"),
        ("labels", [1], "'list', expected a tensor"),
        ("labels", labels[1:], "'[36] of torch.int64', expected [37]"),
        ("labels", labels.double(), "'[37] of torch.float64'"),
        ("labels", labels.bool(), "'[37] of torch.bool'"),  # torch.gather takes neither
        ("labels", labels.byte(), "'[37] of torch.uint8'"),
        ("labels", labels.masked_fill(ignored, WORDS), f"{WORDS}, expected words from 0 to"),
        ("labels", labels.masked_fill(ignored, -5), "-5, expected words from 0 to"),
        ("hidden", [1.0], "'list', expected a tensor"),
        ("hidden", hidden.long(), "'[37, 16] of torch.int64'"),
        ("hidden", hidden[:, 1:], "[37, 15], expected [..., 16]"),
        ("weight", nn.Conv1d(1, 1, 1), "'Conv1d', expected"),
        ("weight", None, "'NoneType', expected"),
        *(("weight", wrong, "'[") for wrong in (weight[0], weight[None], weight.long())),
        ("weight", weight[:0], "[0, "),
        ("bias", torch.ones(3), "'[3] of"),
        ("bias", "a", "'str'"),
        ("bias", torch.ones(WORDS, dtype=torch.int64), "'[50] of torch.int64'"),
    ):
        text = f"linear_cross_entropy: {name}: got {got}"
        refuses(text, linear_cross_entropy, **right | {name: value})


def case_chunked_cross_entropy_is_that_of_all_logits() -> None:
    from deepspeed.runtime import chunked_cross_entropy as chunked

    hidden, weight, _, labels = inputs(torch.float32)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        for reduction in ("none", "sum", "mean"):
            values = (hidden @ weight.T * 4).detach().to(dtype)
            found, wanted = (values.clone().requires_grad_() for _ in range(2))
            loss = chunked.chunked_cross_entropy(found, labels, reduction=reduction, block_rows=5)
            expected = F.cross_entropy(wanted.float(), labels, reduction=reduction)
            torch.testing.assert_close(loss, expected)
            loss.sum().backward()
            expected.sum().backward()
            torch.testing.assert_close(found.grad, wanted.grad, rtol=tolerance, atol=tolerance)
    logits = (hidden @ weight.T).detach()
    next_ones = chunked.ChunkedCausalLMLoss()(logits[None], labels[None], WORDS)
    torch.testing.assert_close(next_ones, F.cross_entropy(logits[:-1], labels[1:]))
    text = "needs CUDA logits and Triton"
    raises(RuntimeError, text, chunked.chunked_cross_entropy, logits, labels, backend="triton")
    raises(ValueError, "block_rows", chunked.ChunkedCausalLMLoss, block_rows=0)
