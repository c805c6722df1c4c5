"""Four ranks, of which one, two or four share each sequence, against one process."""

from zerorun import process_state, sequence

from cases.models import *

IGNORED, TOKENS, WORDS, CLIP = -100, 24, 50, 0.5
STEPS, ACCUMULATION = 3, 2
DOCUMENTS = [0, 5, 13, TOKENS]  # bounds within a packed sequence


def llama() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": "sdpa"}
    config = transformers.LlamaConfig(**sizes, **heads, vocab_size=WORDS, use_cache=False)
    return transformers.LlamaForCausalLM(config)


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def batches(data_rank: int, packed: bool) -> Iterator[dict[str, torch.Tensor]]:
    """Of the ranks that share sequences; prompts of other lengths in each, without labels."""
    for index in range(STEPS * ACCUMULATION):
        generator = torch.Generator().manual_seed(100 * index + data_rank)
        ids = torch.randint(0, WORDS, (1 if packed else 2, TOKENS), generator=generator)
        labels = ids.clone()
        labels[:, : 3 + 5 * data_rank + 4 * index] = IGNORED  # some ranks have no label at all
        if index == data_rank:
            labels[:] = IGNORED  # nor has a whole batch
        batch = {"input_ids": ids, "labels": labels}
        if packed:
            labels[:, DOCUMENTS[1:-1]] = IGNORED
            batch["cu_seq_lens_q"] = torch.tensor(DOCUMENTS, dtype=torch.int32)
        yield batch


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def documents_apart(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """The logits of a packed sequence, each of whose documents is a call of the model."""
    pairs = itertools.pairwise(DOCUMENTS)
    return torch.cat([model(ids[:, begin:end]).logits for begin, end in pairs], dim=1)


def whole(data_size: int, packed: bool) -> tuple[list[tuple[float, float]], list[torch.Tensor]]:
    model = llama()
    optimizer, figures = adamw(model), []
    data = [list(batches(rank, packed)) for rank in range(data_size)]
    for step in range(STEPS):
        total = 0.0
        for index in range(step * ACCUMULATION, (step + 1) * ACCUMULATION):
            for batch in (each[index] for each in data):
                ids, labels = batch["input_ids"], F.pad(batch["labels"], (0, 1), value=IGNORED)
                logits = documents_apart(model, ids) if packed else model(ids).logits
                loss = loss_of(logits, labels[:, 1:]) / (data_size * ACCUMULATION)
                if (labels != IGNORED).any():
                    loss.backward()
                    total += loss.item()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        figures.append((total, norm.item()))
    return figures, [parameter.detach() for parameter in model.parameters()]


def shared(here: sequence.SequenceGroups, stage: int, packed: bool) -> Any:
    model = llama()
    stop = sequence.use_with_transformers(model.config)
    options = {"stage": stage, "clip": CLIP, "accumulation_steps": ACCUMULATION}
    engine = shard(model, optimizer=adamw(model), **options)
    data = list(batches(here.data_rank, packed))
    data += data[: -len(data) % here.size]  # the last ones are not used
    mine = data[here.rank :: here.size]  # a loader's part; each is used by all ranks of the group
    loader = iter(sequence.SequenceLoader(mine, here.rank, here.group, here.size))
    figures = []
    for _ in range(STEPS):
        total = torch.zeros(())
        for _ in range(ACCUMULATION):
            batch = next(loader)
            labels = batch.pop("shift_labels")
            loss = loss_of(engine(**batch).logits, labels)
            loss = sequence.mean_over_sequence(loss, (labels != IGNORED).sum())
            engine.backward(loss)
            engine.step()
            total += loss.detach() / (WORLD_SIZE * ACCUMULATION)
        dist.all_reduce(total)
        figures.append((total.item(), float(engine.get_global_grad_norm())))
    with zerorun.zero.GatheredParameters(model.parameters()):
        parameters = [parameter.detach().clone() for parameter in model.parameters()]
    engine.destroy()
    stop()
    return figures, parameters


def begin(size: int) -> sequence.SequenceGroups:
    """A job has one size; this one tries several."""
    with_process_group()
    process_state.STATE.sequence = None
    return sequence.start(size)


def case_one_two_or_four_ranks_per_sequence_have_the_same_losses_norms_and_parameters() -> None:
    for size in (1, 2, 4):
        here = begin(size)
        assert (here.data_size, here.data_rank) == (WORLD_SIZE // size, RANK // size)
        for packed, stages in ((False, range(4)), (True, (2, 3))):
            figures, parameters = whole(here.data_size, packed)
            for stage in stages:
                found, ended = shared(here, stage, packed)
                torch.testing.assert_close(found, figures, rtol=1e-5, atol=0)
                torch.testing.assert_close(ended, parameters, rtol=0, atol=2e-5)


def case_bounds_of_documents_that_do_not_fit_are_refused() -> None:
    here = begin(WORLD_SIZE)
    ids = torch.zeros(1, TOKENS, dtype=torch.int64)
    for rows, bounds in ((1, [0, 5]), (1, [3, TOKENS]), (2, [0, TOKENS]), (1, [])):
        batch = {"input_ids": ids.expand(rows, -1), "cu_seq_lens_q": torch.tensor(bounds)}
        loader = sequence.SequenceLoader([batch], here.rank, here.group, here.size)
        raises(ValueError, "expected one sequence and bounds", next, iter(loader))
