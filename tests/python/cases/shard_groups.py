"""Shard groups of one rank: every rank is a replica of the others."""

import torch
import zerorun

from cases.models import *

STAGES = (1, 2, 3)
OPTIMIZER = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}}


def grouped(stage: int, make_optimizer=None, seed: int = 0, size: int = 1) -> zerorun.ZeroEngine:
    keys = config(stage) if make_optimizer else config(stage, optimizer=OPTIMIZER)
    keys["zerorun"] = keys["zerorun"] | {"shard_group_size": size}
    model = make(Model, seed)
    optimizer = make_optimizer(model) if make_optimizer else None
    return initialize(model, optimizer, config=keys)[0]


def full_values(engine: zerorun.ZeroEngine) -> list[torch.Tensor]:
    return [zerorun.zero.safe_get_full_fp32_param(p) for p in engine.module.parameters()]


def case_losses_are_those_of_one_process() -> None:
    expected, _ = reference()
    for make_optimizer in (None, adamw):
        plain = grouped(2, make_optimizer, size=0)
        train(plain)
        for stage in STAGES:
            engine = grouped(stage, make_optimizer)
            assert_close(train(engine), expected)
            assert_same(full_values(engine), full_values(plain))


def case_states_can_be_read_and_set() -> None:
    engine = grouped(2, adamw)
    train(engine, 2)
    target = next(engine.module.parameters())
    for name in ("exp_avg", "exp_avg_sq"):
        state = zerorun.zero.safe_get_full_optimizer_state(target, name)
        assert state is not None
        assert state.shape == target.shape
        zerorun.zero.safe_set_full_optimizer_state(target, torch.full_like(state, 0.5), name)
        state = zerorun.zero.safe_get_full_optimizer_state(target, name)
        assert torch.equal(state, torch.full_like(state, 0.5))
    zerorun.zero.safe_set_full_fp32_param(target, torch.full(target.shape, 0.25))
    assert torch.equal(target.detach(), torch.full_like(target, 0.25))


def case_sizes_that_cannot_work_are_errors() -> None:
    text = f"/zero_optimization/mics_shard_size): got 3 for {WORLD_SIZE} ranks"
    refuses(text, grouped, 2, size=3)
    refuses("got 0, which shards nothing", grouped, 0)
