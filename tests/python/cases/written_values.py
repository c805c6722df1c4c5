"""What a program does to parameters after the engine was made."""

from pathlib import Path

import torch
import zerorun
from zerorun.zero import safe_get_full_fp32_param

from cases.models import *


def case_values_written_after_initialize_are_kept() -> None:
    """In 16 bits and with offloaded states the next step is made of masters elsewhere."""
    weights = {name: value.clone() for name, value in make(seed=7).state_dict().items()}
    offload = {"offload_optimizer": {"device": "cpu"}}
    for stage in range(3):
        for keys, zero in ((BF16, {}), ({}, {}), ({}, offload if stage > 0 else {})):
            settings = config(stage, **keys)
            settings["zero_optimization"] |= zero
            model = make()
            sgd = torch.optim.SGD(model.parameters(), lr=0.0)
            for given in (sgd, adamw(model)):
                given.param_groups[0].update(lr=0.0, weight_decay=0.0)
                engine, *_ = initialize(model, given, config=settings)
                train(engine, 1)
                masters = [safe_get_full_fp32_param(p) for p in model.parameters()]
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.copy_(parameter)  # the same: masters stay as precise
                train(engine, 1)
                assert_same([safe_get_full_fp32_param(p) for p in model.parameters()], masters)
                model.load_state_dict(weights)
                written = {name: value.clone() for name, value in model.state_dict().items()}
                master = safe_get_full_fp32_param(model.head.weight)
                assert torch.equal(master.to(model.head.weight.dtype), written["head.weight"])
                train(engine, 1)
                assert_same(dict(model.state_dict()), written)


def case_values_written_before_states_are_loaded_are_kept(folder: Path) -> None:
    """The order of most scripts: the model's state dict, then the optimizer's."""
    for stage in (1, 2):
        model = make()
        basic = adamw(model)
        engine = shard(model, stage=stage, dtype=torch.bfloat16, optimizer=basic)
        train(engine, 2)
        states = basic.state_dict()
        model.load_state_dict(make(seed=7).state_dict())
        written = {name: value.clone() for name, value in model.state_dict().items()}
        # This rank's states with the masters of now.
        now = basic.state_dict()["state"]
        own = {k: {**s, "master": now[k]["master"]} for k, s in states["state"].items()}
        basic.load_state_dict({**states, "state": own})
        engine.save_checkpoint(folder / str(stage))
        assert_same(dict(model.state_dict()), written)
        engine.load_checkpoint(folder / str(stage))
        assert_same(dict(model.state_dict()), written)


def case_a_sharded_optimizer_keeps_weights_that_are_loaded_after_it_was_made() -> None:
    model = make().bfloat16()
    optimizer = zerorun.ShardedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.0))
    model.load_state_dict(make(seed=7).state_dict())
    written = {name: value.clone() for name, value in model.state_dict().items()}
    loss_of(model, part_of(batch_of(0))).backward()
    optimizer.step()
    assert_same(dict(model.state_dict()), written)


def case_a_parameter_that_is_unfrozen_later_is_an_error_at_the_next_step() -> None:
    for stage in STAGES:
        model = make()
        model.blocks[0].up.weight.requires_grad_(False)
        engine, *_ = initialize(model, adamw(model), config=config(stage))
        train(engine, 2)
        model.blocks[0].up.weight.requires_grad_(True)
        backward(engine)
        refuses("blocks.0.up.weight was frozen when", engine.step)
