"""Sequence parallelism: ranks share each sequence, against one process with the whole ones."""

from zerorun import sequence

from cases.models import *

HEADS, TOKENS = 4, 24


def groups() -> sequence.SequenceGroups:
    with_process_group()
    return sequence.start(WORLD_SIZE)


def own(tensor: torch.Tensor, dim: int = 1) -> torch.Tensor:
    return tensor.chunk(WORLD_SIZE, dim)[RANK]


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    for_each_head = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
    found = F.scaled_dot_product_attention(query, *for_each_head, is_causal=True)
    return found.transpose(1, 2)


def case_attention_and_its_gradients_are_the_whole_ones() -> None:
    here = groups()
    torch.manual_seed(0)
    for kv_heads in (4, 2, 1):
        for batch in (1, 3):
            shapes = [(batch, heads, TOKENS, 8) for heads in (HEADS, kv_heads, kv_heads)]
            whole = [torch.randn(shape, requires_grad=True) for shape in shapes]
            parts = [own(tensor.detach(), 2).clone().requires_grad_() for tensor in whole]
            expected = attention(*whole)
            weight = torch.randn_like(expected)
            (expected * weight).sum().backward()
            found = sequence.attend(attention, here, *parts)
            (found * own(weight)).sum().backward()
            torch.testing.assert_close(found, own(expected))
            for part, tensor in zip(parts, whole, strict=True):
                torch.testing.assert_close(part.grad, own(tensor.grad, 2), rtol=1e-4, atol=1e-5)


def case_a_configuration_may_ask_for_shared_sequences() -> None:
    asked = {"train_micro_batch_size_per_gpu": 2, "sequence_parallel_size": WORLD_SIZE}
    asked |= {"zerorun": {"comm_timeout": 30}, "seq_parallel_communication_data_type": "bf16"}
    if not dist.is_initialized() and WORLD_SIZE > 1:
        refuses("call init_process_group before", initialize, make(), config=asked)
    with_process_group()
    text = "/data_parallel_size: got 7, expected 1"
    refuses(text, initialize, make(), config={**asked, "data_parallel_size": 7})
    _, engine = started({**asked, "data_parallel_size": 1})
    here = sequence.current() or groups()
    assert here.size == WORLD_SIZE
    assert engine.batch.train_batch_size == 2  # sequences, however many ranks share each
    if WORLD_SIZE > 1:
        assert engine._shards.settings.precision.communication_dtype == "bf16"


def case_a_mean_of_something_else_is_refused() -> None:
    refuses("loss: got", sequence.mean_over_sequence, torch.ones(2), 1)
    refuses("count: got", sequence.mean_over_sequence, torch.ones(()), 1.5)


def case_a_resumed_loader_loses_no_part_of_a_batch(folder: Path) -> None:
    """Saved after each step: the steps since the last whole batch come again."""
    here = groups()
    data = [{"input_ids": torch.full((WORLD_SIZE,), index)} for index in range(4 * WORLD_SIZE)]

    def start() -> tuple[zerorun.ZeroEngine, sequence.SequenceLoader]:
        model = make()
        engine = shard(model, optimizer=sgd(model))
        loader = engine.make_dataloader(data, 1)
        return engine, sequence.SequenceLoader(loader, here.rank, here.group, here.size)

    engine, loader = start()
    assert engine.batch.train_batch_size == 1  # sequences under way
    assert len(loader) == 4 * WORLD_SIZE
    seen = []
    for batch in loader:
        seen.append(int(batch["input_ids"][0, 0]))
        engine.backward(engine(batch["input_ids"]).sum())
        engine.step()
        engine.save_checkpoint(folder, tag=str(len(seen)))
    assert sorted(seen) == list(range(4 * WORLD_SIZE))
    assert len(list(loader)) == len(loader)  # another epoch
    for steps in range(1, len(seen)):
        engine, loader = start()
        engine.load_checkpoint(folder, tag=str(steps))
        found = [int(batch["input_ids"][0, 0]) for batch in loader]
        assert found == seen[steps - steps % WORLD_SIZE :], steps


def case_what_cannot_be_shared_is_refused() -> None:
    here = groups()

    def load(batch: Any) -> None:
        next(iter(sequence.SequenceLoader([batch], here.rank, here.group, here.size)))

    ids = torch.zeros(1, 2 * WORLD_SIZE, dtype=torch.int64)
    left = (torch.arange(ids.numel()) > 0).long()[None]
    for wrong in ([ids], ids, {"labels": ids}, {"input_ids": ids[0] if RANK == 0 else ids}):
        raises(ValueError, "expected a dictionary with input_ids", load, wrong)
    raises(ValueError, "pad on the right", load, {"input_ids": ids, "attention_mask": left})
    text = "position_ids has shape (1, 1)"
    raises(ValueError, text, load, {"input_ids": ids, "position_ids": ids[:, :1]})
    bounds = {"cu_seq_lens_q": torch.tensor([0, 2, 1, 2 * WORLD_SIZE])} if RANK == 0 else {}
    raises(ValueError, "bounds of its documents, a 1-D", load, {"input_ids": ids} | bounds)
    raises(ValueError, "a job has one size", sequence.start, WORLD_SIZE + 1)
    if WORLD_SIZE == 1:
        return
    raises(ValueError, "pad_to_multiple_of=2", load, {"input_ids": ids[:, 1:]})
    one = torch.zeros(1, 3, 2, 4)
    raises(ValueError, "do not divide the model's 3", sequence.attend, attention, here, *[one] * 3)
    given = [{"input_ids": ids}] * (1 + RANK)
    ragged = sequence.SequenceLoader(given, here.rank, here.group, here.size)
    raises(ValueError, "ended before the others'", list, ragged)


def case_hugging_face_models_attend_over_shared_sequences() -> None:
    """Grouped key-value heads, a sliding window, and several documents in one sequence."""
    transformers = pytest.importorskip("transformers")
    here = groups()
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 50}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": "sdpa"}
    packed = torch.cat([torch.arange(10), torch.arange(TOKENS - 10)])[None]
    modes = torch.inference_mode, torch.no_grad
    for window in (None, 5):
        torch.manual_seed(0)
        config = transformers.MistralConfig(**shape, sliding_window=window, use_cache=False)
        model = transformers.MistralForCausalLM(config)
        ids = torch.randint(0, 50, (1, TOKENS))
        for positions in (torch.arange(TOKENS)[None], packed):
            with torch.no_grad():
                expected = model(ids, position_ids=positions).logits
                for mode, in_training_only in zip(modes, (False, True), strict=True):
                    stop = sequence.use_with_transformers(config, disable_in_eval=in_training_only)
                    with mode():
                        found = model.train()(own(ids), position_ids=own(positions).clone()).logits
                    torch.testing.assert_close(found, own(expected), rtol=1e-4, atol=1e-5)
                    if in_training_only:
                        found = model.eval()(ids, position_ids=positions).logits
                        torch.testing.assert_close(found, expected)
                    stop()
    assert here.size == WORLD_SIZE
    text = "attention 'eager' is not supported"
    raises(ValueError, text, sequence.use_with_transformers, config, "eager")
