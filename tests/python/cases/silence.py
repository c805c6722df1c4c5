"""What must not happen in silence: results that are empty, steps that are not the optimizer's,
loads and saves of something else than was asked for."""

import numpy as np

from cases.checkpoints import Normalised, engine_at, sgd
from cases.models import *


def case_state_dicts_of_sharded_parameters_are_not_empty_in_silence() -> None:
    model, engine = started(config(3))
    refuses("state_dict: embedding.weight is empty", engine.state_dict)
    for name, state_dict in (
        (r"embedding\.weight", model.state_dict),
        (r"x\.embedding\.weight", lambda: model.state_dict(prefix="x.")),
        (r"norm\.bias", model.blocks[1].state_dict),
        (r"y\.norm\.bias", lambda: model.blocks[1].state_dict(prefix="y.")),
        (r"block\.norm\.bias", nn.ModuleDict({"block": model.blocks[1]}).state_dict),
        (r"_orig_mod\.norm\.bias", torch.compile(model.blocks[1], backend="eager").state_dict),
    ):
        with pytest.warns(UserWarning, match=f"state_dict: {name} is empty") as warned:
            state_dict()
        assert [warning.filename for warning in warned] == [__file__]
    with pytest.warns(UserWarning, match="has an empty parameter"):
        pickle.dumps(model)
    assert engine.state_dict(keep_vars=True)["embedding.weight"] is model.embedding.weight
    with GatheredParameters(model.parameters()):
        shapes = {name: value.shape for name, value in engine.state_dict().items()}
        pickle.dumps(model)
        model.blocks[1].state_dict()
    assert shapes == {name: value.shape for name, value in make().state_dict().items()}
    refuses("engine.full_state_dict() is the whole model's", engine.state_dict)
    engine.destroy()
    model.state_dict()  # partitioned as by zero.Init, where libraries look for names


def case_a_forward_that_changes_weights_is_told() -> None:
    model = nn.Sequential(nn.Embedding(4, 2, max_norm=1.0))
    with pytest.warns(UserWarning, match="Embedding 0 has max_norm"):
        initialize(model, adamw(model), config=config(3))


def case_copies_of_what_ranks_share_are_errors() -> None:
    model = make()
    engine, optimizer, *_ = initialize(model, adamw(model), config=config(2))
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        refuses("copy.deepcopy(engine.module)", copied, engine)
        refuses("state_dict() copies", copied, optimizer)
    assert copy.deepcopy(model).head.weight.shape == model.head.weight.shape


def step_on(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A step on gradients that are not backward's."""
    try:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    finally:
        for parameter in model.parameters():
            parameter.grad = None


def case_gradients_that_are_assigned_are_an_error() -> None:
    for stage in (0, 3):
        model = make()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)  # of a training before this one
        engine, optimizer, *_ = initialize(model, adamw(model), config=config(stage))
        train(engine, 1)
        before = engine._core.parameter_hash()
        with GatheredParameters(model.parameters()):
            refuses("has a .grad that was assigned to it", step_on, model, optimizer)
        assert engine._core.parameter_hash() == before


def case_an_optimizers_state_dict_has_what_this_rank_keeps() -> None:
    for stage, make_optimizer, keys in ((0, rmsprop, {}), (1, adamw, {}), (3, adamw, BF16)):
        settings = config(stage, **keys)
        model = make()
        engine, optimizer, *_ = initialize(model, make_optimizer(model), config=settings)
        train(engine, 1)
        saved = copy.deepcopy(optimizer.state_dict())
        with GatheredParameters(model.parameters()):
            values = copy.deepcopy(model.state_dict())
        expected = train(engine, 1, first=1)
        model = make()
        model.load_state_dict(values)
        engine, optimizer, *_ = initialize(model, make_optimizer(model), config=settings)
        optimizer.load_state_dict(saved)
        assert train(engine, 1, first=1) == expected
        key = next(iter(saved["state"]), "")
        saved["state"].pop(key, None)
        text = f"{key} is in one of the two only"
        raises(zerorun.CheckpointError, text, optimizer.load_state_dict, saved)


def case_a_learning_rate_that_is_a_tensor_stays_one(folder: Path) -> None:
    warmup = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 4}}
    model = make()
    plain = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3))
    engine, *_ = initialize(model, plain, config=config(1, scheduler=warmup))
    rate = plain.param_groups[0]["lr"]
    train(engine, 2)
    assert plain.param_groups[0]["lr"] is rate
    after = rate.item()
    assert math.isclose(after, engine.lr_scheduler.get_last_lr()[0], rel_tol=1e-6)
    engine.save_checkpoint(folder)
    rate.fill_(0.0)
    engine.load_checkpoint(folder)
    assert plain.param_groups[0]["lr"] is rate
    assert rate.item() == after


def hidden_decay(group: dict[str, Any], parameter: nn.Parameter) -> None:
    """By all gradients, in a way that PyTorch does not see; a usual decay hardly shows it."""
    scale = group["weight_decay"] / (1 + np.mean(np.square(parameter.grad.numpy())))
    parameter.data.mul_(1 - group["lr"] * float(scale))


def late(group: dict[str, Any], parameter: nn.Parameter) -> None:
    group["count"] = group.get("count", 0) + 1
    if group["count"] > 20:
        parameter.grad /= parameter.grad.norm()


# What optimizers change of each parameter before SGD's step: norms at once and late, matrices only,
# what no short run shows (Prodigy, Shampoo), and what no operation shows.
WHOLE: dict[str, Callable[[dict[str, Any], nn.Parameter], object]] = {
    "Lars": lambda _, p: p.grad.mul_(p.detach().norm() / p.grad.norm()),
    "Late": late,
    "Rotated": lambda _, p: setattr(p, "grad", p.grad @ p.grad.mT @ p.grad),
    "Measuring": lambda group, p: group.update(most=(p.grad * p.detach()).sum().item()),
    "Hidden": hidden_decay,
}


class Changing(torch.optim.SGD):
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                WHOLE[type(self).__name__](group, parameter)
        super().step(closure)


class Lion(torch.optim.Optimizer):
    def __init__(self, params: object, lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99, 0.999)})

    def step(self, closure: None = None) -> None:
        self.steps = getattr(self, "steps", 0) + 1
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    state = self.state[parameter]
                    average = state.setdefault("exp_avg", torch.zeros_like(parameter))
                    parameter.sub_((0.9 * average + 0.1 * parameter.grad).sign() * group["lr"])
                    average.lerp_(parameter.grad, 0.01)


def case_optimizers_are_known_by_what_they_do() -> None:
    for name in WHOLE:
        model = make()
        kind = type(name, (Changing,), {})
        optimizer = kind(model.parameters(), lr=0.1, weight_decay=1e-4)
        if name == "Lars":  # a schedule that begins at 0
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
        text = f"{name} needs whole parameters, which shards cannot give"
        refuses(text, initialize, model, optimizer, config=config(1))
    model = make()
    lbfgs = torch.optim.LBFGS(model.parameters())
    for text in ("LBFGS cannot run on shards", "use another, or the configuration's Muon"):
        refuses(text, initialize, model, lbfgs, config=config(1))
    losses = []
    for stage in STAGES:
        model = make()
        optimizer = Lion(model.parameters(), lr=1e-3)
        random = torch.random.get_rng_state()
        engine, *_ = initialize(model, optimizer, config=config(stage))
        assert torch.equal(torch.random.get_rng_state(), random)
        assert not hasattr(optimizer, "steps")  # it was tried on a copy
        losses.append(train(engine, 2))
    assert losses == [losses[0]] * len(losses)


class Tabled(Normalised):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(3))


def case_strict_loads_compare_buffers(folder: Path) -> None:
    engine = engine_at(1, kind=Tabled)
    train(engine, 1)
    engine.save_checkpoint(folder, client_state={"epoch": 1})
    before = engine._core.parameter_hash()
    train(engine, 1)
    after = engine._core.parameter_hash()
    for change, text in (
        (lambda module: module.register_buffer("table", torch.zeros(4)), "table has shape (3,)"),
        (lambda module: module._buffers.pop("table"), "the checkpoint has the buffer table"),
        (lambda module: module.register_buffer("more", torch.ones(1)), "has the buffer more"),
    ):
        change(engine.module)
        raises(zerorun.CheckpointError, text, engine.load_checkpoint, folder)
        assert (engine.global_steps, engine._core.parameter_hash()) == (2, after)
    path, state = engine.load_checkpoint(folder, load_module_strict=False, load_module_only=True)
    assert path.endswith("global_step1")
    assert state == {"epoch": 1}
    assert (engine.global_steps, engine._core.parameter_hash()) == (2, before)


def case_ranks_that_name_different_tags_save_and_load_rank_zeros(folder: Path) -> None:
    for stage in STAGES:
        engine = engine_at(stage, sgd if stage == 2 else adamw)
        path = folder / str(stage)
        hashes = []
        for step in (1, 2):
            train(engine, 1)
            engine.save_checkpoint(path, tag=f"step{step}" if RANK == 0 else None)
            hashes.append(engine._core.parameter_hash())
        loaded, _ = engine.load_checkpoint(path, tag="step1" if RANK == 0 else "no such")
        assert loaded == str(path / "step1")
        assert (engine._core.parameter_hash(), engine.global_steps) == (hashes[0], 1)
        loaded, _ = engine.load_checkpoint(path, tag=None if RANK == 0 else "step1")
        assert loaded == str(path / "step2")


def case_values_written_after_initialize_are_kept() -> None:
    """In 16 bits and with offloaded states the next step is made of masters elsewhere."""
    weights = {name: value.clone() for name, value in make(seed=7).state_dict().items()}
    offload = {"offload_optimizer": {"device": "cpu"}}
    for stage in range(3):
        for keys, zero in ((BF16, {}), ({}, {}), ({}, offload if stage > 0 else {})):
            settings = config(stage, zero, **keys)
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
