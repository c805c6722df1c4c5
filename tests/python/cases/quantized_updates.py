"""zero_quantized_weights at stages 1 and 2, on ranks of two hosts (test_hosts.py)."""

import deepspeed
import torch.distributed.checkpoint.state_dict as dcp

from cases.models import *


def settings(stage: int, *, quantized: bool = True, **keys: object) -> dict[str, Any]:
    return config(stage, {"zero_quantized_weights": True} if quantized else {}, **keys)


def start(stage: int, seed: int = 0, **keys: Any) -> zerorun.ZeroEngine:
    return started(settings(stage, **keys), seed=seed)[1]


PAIRS = [(1, {}), (2, BF16)]  # a stage's gradients and a dtype's masters do not meet


def engines() -> Iterator[zerorun.ZeroEngine]:
    for stage, keys in PAIRS:
        yield start(stage, **keys)


def masters_of(engine: zerorun.ZeroEngine) -> list[torch.Tensor]:
    return [safe_get_full_fp32_param(p) for p in engine.module.parameters()]


def make_process_group() -> None:
    """PyTorch's; zerorun listens at the job's port."""
    if not dist.is_initialized():
        address = f"tcp://{os.environ['MASTER_ADDR']}:29501"
        dist.init_process_group("gloo", address, rank=RANK, world_size=WORLD_SIZE)


def expect_decoded(engine: zerorun.ZeroEngine) -> None:
    """All ranks have the same values, near the masters' and not them; vectors have the masters'."""
    for name, parameter in engine.module.named_parameters():
        own = parameter.detach().float().contiguous()
        first = own.clone()
        engine.communicator.broadcast(first, 0, f"rank 0's {name}")
        assert torch.equal(first, own), name
        master = safe_get_full_fp32_param(parameter)
        if parameter.dim() == 1:
            assert torch.equal(parameter.detach(), master.to(parameter.dtype)), name
            continue
        step = master.abs().max() / 127
        near = 2 ** (-8 if parameter.dtype is torch.bfloat16 else -20)
        off = (own - master).abs()
        assert (off <= 0.51 * step + 2 * near * master.abs()).all(), name
        assert off.max() > 0.05 * step, name


def case_losses_stay_close_by_each_way_to_start() -> None:
    make_process_group()
    for stage, way in ((1, zerorun.initialize), (2, deepspeed.initialize)):
        expected = train(start(stage, quantized=False))
        model = make()
        engine, *_ = kept(way(model=model, optimizer=adamw(model), config=settings(stage)))
        losses = train(engine)
        assert losses != expected
        assert_close(losses, expected, 0.01)


def case_a_resumed_run_has_the_same_losses(folder: Path) -> None:
    for number, engine in enumerate(engines()):
        train(engine, 2)
        engine.save_checkpoint(folder / str(number))
        expected = train(engine, 3, first=2)
        engine.load_checkpoint(folder / str(number))
        expect_decoded(engine)
        assert train(engine, 3, first=2) == expected


def case_other_settings_take_the_masters(folder: Path) -> None:
    engine = start(2, **BF16)
    train(engine, 2)
    engine.save_checkpoint(folder)
    engine.save_16bit_model(folder)
    masters = masters_of(engine)
    saved = torch.load(folder / "pytorch_model.bin")
    for name, parameter in engine.module.named_parameters():
        if name in saved:  # not what is tied to another
            assert torch.equal(saved[name], parameter.detach()), name
    for stage in (1, 3):
        engine = start(stage, quantized=False, **BF16)
        engine.load_checkpoint(folder)
        assert_same(masters_of(engine), masters)


def case_several_engines_train_side_by_side() -> None:
    alone = []
    for seed in (0, 1):
        engine = start(1 + seed, seed, **BF16)
        alone.append(train(engine, 2))
    pair = [start(1 + seed, seed, **BF16) for seed in (0, 1)]
    losses: list[list[float]] = [[], []]
    for step in range(2):
        for engine, found in zip(pair, losses, strict=True):
            found += train(engine, 1, first=step)
    assert losses == alone


def case_what_a_program_writes_counts_and_the_rest_stays_precise() -> None:
    for engine in engines():
        expect_decoded(engine)
        train(engine, 1)
        weight = engine.module.head.weight
        before = safe_get_full_fp32_param(weight)
        others = [p for p in engine.module.parameters() if p is not weight]
        beside = [torch.where(p != 0, safe_get_full_fp32_param(p), 0.0) for p in others]
        with torch.no_grad():
            weight[0].fill_(0.25)
            for parameter in others:
                parameter.copy_(parameter)
        assert_same([safe_get_full_fp32_param(p) for p in others], beside)
        after = safe_get_full_fp32_param(weight)
        assert (after[0] == 0.25).all()
        kept = weight != 0  # what has decoded to 0 counts as written
        assert torch.equal(after[1:], torch.where(kept, before, 0.0)[1:])
        with GatheredParameters(weight, modifier_rank=0), torch.no_grad():
            weight[1].fill_(0.5)
        after = safe_get_full_fp32_param(weight)
        assert (after[:2] == torch.tensor([[0.25], [0.5]])).all()
        assert torch.equal(after[2:], torch.where(kept, before, 0.0)[2:])
        given = {name: value.clone() for name, value in make(seed=7).state_dict().items()}
        engine.load_state_dict(given)
        written = given["head.weight"].to(weight.dtype)
        assert torch.equal(safe_get_full_fp32_param(weight).to(weight.dtype), written)
        expect_decoded(engine)
        train(engine, 1)
        expect_decoded(engine)


def case_zeros_count_wherever_they_are_written() -> None:
    for engine in engines():
        train(engine, 1)
        zeros = {n: torch.zeros_like(v) for n, v in engine.module.state_dict().items()}
        weight = engine.module.head.weight
        with torch.no_grad():
            weight.zero_()
        assert not safe_get_full_fp32_param(weight).any()
        train(engine, 2)
        with GatheredParameters(weight, modifier_rank=0), torch.no_grad():
            weight.zero_()
        assert not safe_get_full_fp32_param(weight).any()
        train(engine, 2)
        engine.load_state_dict(zeros)
        for parameter in engine.module.parameters():
            assert not parameter.any()
            assert not safe_get_full_fp32_param(parameter).any()


def case_an_older_state_is_loaded_as_it_is() -> None:
    for engine in engines():
        train(engine, 1)
        older = {name: value.clone() for name, value in engine.module.state_dict().items()}
        train(engine, 1)
        engine.load_state_dict(older)
        for name, parameter in engine.module.named_parameters():
            assert torch.equal(safe_get_full_fp32_param(parameter).to(parameter.dtype), older[name])


def case_state_dicts_of_torch_bring_16_bit_masters_back() -> None:
    make_process_group()
    engine = start(2, **BF16)
    train(engine, 2)
    model, optimizer = engine.module, engine.optimizer
    saved = dcp.get_state_dict(model, optimizer)
    masters = masters_of(engine)
    train(engine, 2, first=2)
    dcp.set_state_dict(model, optimizer, model_state_dict=saved[0], optim_state_dict=saved[1])
    assert_same(masters_of(engine), masters)
