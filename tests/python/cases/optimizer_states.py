"""``optimizer.state`` of an engine, against torch's optimizer on the whole model."""

from cases.interchange import engine_for, unpack
from cases.models import *

Maker = Callable[[nn.Module], torch.optim.Optimizer]
STEPS = 3


def trained(make_optimizer: Maker) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = make()
    optimizer = make_optimizer(model)
    for step in range(STEPS):
        torch_step(model, optimizer, step)
    return model, optimizer


def whole(engine: zerorun.ZeroEngine, part: torch.Tensor) -> torch.Tensor:
    """All ranks' parts of a state, one after the other. Collective."""
    numels = torch.zeros(WORLD_SIZE, dtype=torch.int64)
    numels[engine.communicator.rank] = part.numel()
    engine.communicator.all_reduce(numels, "sum", "numbers of elements")
    begin = int(numels[: engine.communicator.rank].sum())
    full = torch.zeros(int(numels.sum()))
    full[begin : begin + part.numel()] = part.flatten()
    engine.communicator.all_reduce(full, "sum", "a state")
    return full


def case_states_are_torchs_in_both_optimizers_until_the_engine_ends() -> None:
    for make_optimizer, names in ((adamw, ("exp_avg", "exp_avg_sq")), (sgd, ("momentum_buffer",))):
        plain, of_plain = trained(make_optimizer)
        for stage in STAGES:
            model = make()
            basic = make_optimizer(model)
            before = basic.state
            engine, optimizer, *_ = initialize(model, basic, config=config(stage))
            parameters = list(model.parameters())
            assert not optimizer.state
            assert not basic.state
            assert optimizer.state[parameters[0]] == {}
            train(engine, STEPS)
            assert set(optimizer.state) == set(parameters)
            for parameter, other in zip(parameters, plain.parameters(), strict=True):
                found, states = optimizer.state[parameter], of_plain.state[other]
                assert_same(dict(basic.state[parameter]), dict(found))
                for name in names:
                    value = whole(engine, found.get(name, torch.empty(0)))
                    assert torch.allclose(value, states[name].view(value.shape), atol=1e-6), name
                if "step" in found:  # it has elements on this rank
                    assert int(found["step"]) == STEPS
            for copied in (copy.deepcopy, pickle.dumps):
                refuses("cannot be copied or pickled", functools.partial(copied, basic))
            of_torch = engine._shards.torch_states
            engine.destroy()
            assert of_torch is None or not of_torch._states  # whose memory would stay
            assert copy.deepcopy(basic).param_groups
            assert basic.state is before
            assert not before
            assert len(engine.optimizer.state) == 0


def case_the_optimizer_that_was_given_is_the_engines_in_all_that_it_offers() -> None:
    for stage in STAGES:
        for make_optimizer in (adamw, sgd):
            model = make()
            basic = make_optimizer(model)
            engine = shard(model, stage=stage, optimizer=basic)
            assert "set_to_none" in inspect.signature(basic.zero_grad).parameters
            own_step(basic, model, engine, 0)
            saved = copy.deepcopy(basic.state_dict())
            expected = [own_step(basic, model, engine, step) for step in (1, 2)]
            kept = copy.deepcopy(dict(engine.full_state_dict(rank0_only=False)))
            basic.load_state_dict(saved)
            assert_same(dict(basic.state_dict()["state"]), dict(saved["state"]))
            basic.param_groups[0]["lr"] = 0.0  # as a scheduler does
            basic.param_groups[0]["weight_decay"] = 0.0
            own_step(basic, model, engine, 3)
            assert_same(dict(engine.full_state_dict(rank0_only=False)), kept)
            more = {"params": [nn.Parameter(torch.ones(2))]}
            refuses("add_param_group after initialize", basic.add_param_group, more)
            loss_of(model, part_of(batch_of(4))).backward()
            basic.param_groups[0]["params"].append(nn.Parameter(torch.ones(2)))
            refuses("leaves some out of a step", basic.step)
            basic.param_groups[0]["params"].pop()
            basic.param_groups.append({**basic.param_groups[0], "params": []})
            refuses("has 2 parameter groups, and had 1", basic.step)
            engine.destroy()
            basic.param_groups.pop()
            assert not {"step", "state_dict", "load_state_dict"} & vars(basic).keys()
            assert all(map(math.isfinite, expected))
            again = shard(model, stage=stage, optimizer=basic)
            assert math.isfinite(own_step(basic, model, again, 5))


def own_step(basic: Any, model: nn.Module, engine: zerorun.ZeroEngine, step: int) -> float:
    loss = loss_of(model, part_of(batch_of(step)))
    loss.backward()
    basic.step()
    basic.zero_grad()
    return mean(loss.detach(), engine)


def case_states_of_torchs_own_training_are_loaded() -> None:
    for make_optimizer in (adamw, sgd):
        plain, basic = trained(make_optimizer)
        weights = copy.deepcopy(plain.state_dict())
        saved = copy.deepcopy(basic.state_dict())
        saved["param_groups"][0]["lr"] /= 2
        basic.load_state_dict(copy.deepcopy(saved))
        losses = [torch_step(plain, basic, STEPS + step) for step in range(STEPS)]
        for stage in STAGES:
            model = make()
            model.load_state_dict(weights)
            own = make_optimizer(model)
            engine, *_ = initialize(model, own, config=config(stage))
            own.load_state_dict(saved)
            assert own.param_groups[0]["lr"] == saved["param_groups"][0]["lr"]
            assert_close(train(engine, STEPS, STEPS), losses)
            wrong = {-1: "step of parameter 0 is -1", 5: "made 3 steps and parameter 0 5"}
            for step, text in wrong.items() if make_optimizer is adamw else ():
                states = saved["state"] | {0: {**saved["state"][0], "step": step}}
                given = saved | {"state": states}
                raises(zerorun.CheckpointError, text, own.load_state_dict, given)
            text = "expected state and param_groups"
            raises(zerorun.CheckpointError, text, own.load_state_dict, {})


def case_states_that_move_to_their_own_device_stay() -> None:
    """As Lightning moves them; others are an error that says how to set states."""
    model = make()
    engine, optimizer, *_ = initialize(model, adamw(model), config=config(2))
    train(engine, 1)
    for parameter, states in optimizer.state.items():
        optimizer.state[parameter] = {
            key: value.to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
            for key, value in states.items()
        }
    parameter = next(model.parameters())

    def replace() -> None:
        states = optimizer.state[parameter]
        optimizer.state[parameter] = {k: v + 1 for k, v in states.items()}

    if optimizer.state[parameter]["exp_avg"].numel():
        refuses("safe_set_full_optimizer_state", replace)


def case_states_that_a_program_changes_count_or_are_an_error() -> None:
    """As a program that begins anew with merged adapters changes them, on every rank."""

    def change(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for parameter in model.parameters():
            optimizer.state[parameter]["exp_avg"].mul_(0.5)

    plain, of_plain = trained(adamw)
    change(plain, of_plain)
    torch_step(plain, of_plain, STEPS)
    for stage in STAGES:
        model = make()
        engine, optimizer, *_ = initialize(model, adamw(model), config=config(stage))
        train(engine, STEPS)
        if stage == 0 and WORLD_SIZE > 1:  # where ranks would differ afterwards
            for kept in (optimizer, engine.optimizer.optimizer):
                refused = functools.partial(change, model, kept)
                raises(NotImplementedError, "safe_set_full_optimizer_state", refused)
            continue
        change(model, optimizer)
        train(engine, 1, first=STEPS)
        for parameter, other in zip(model.parameters(), plain.parameters(), strict=True):
            value = whole(engine, optimizer.state[parameter]["exp_avg"])
            expected = of_plain.state[other]["exp_avg"].view(value.shape)
            assert torch.allclose(value, expected, atol=1e-6)
    wide = nn.Linear(64, 256)
    cut = {"offload_optimizer": {"device": "cpu"}, "sub_group_size": 1024}  # several chunks a rank
    engine, optimizer, *_ = initialize(wide, adamw(wide), config=config(1, cut))
    engine.backward(engine(torch.ones(1, 64)).square().mean())
    engine.step()
    copied = optimizer.state[wide.weight]["exp_avg"]
    for refused in (lambda: copied.mul_(0.5), lambda: torch._foreach_mul_([copied], 0.5)):
        raises(NotImplementedError, "safe_set_full_optimizer_state", refused)
    doubled = torch.compile(lambda values: values * 2, backend="eager")
    assert torch.equal(doubled(copied), copied * 2)
    for again in (copy.deepcopy(copied), pickle.loads(pickle.dumps(copied))):
        assert type(again) is torch.Tensor
        assert torch.equal(again, copied)


def case_states_that_a_program_replaces_begin_anew() -> None:
    for make_optimizer, name in ((adamw, "exp_avg"), (sgd, "momentum_buffer")):
        plain, of_plain = trained(make_optimizer)
        of_plain.state = collections.defaultdict(dict)
        torch_step(plain, of_plain, STEPS)
        for stage in STAGES:
            model = make()
            engine, optimizer, *_ = initialize(model, make_optimizer(model), config=config(stage))
            train(engine, STEPS)
            kept = optimizer if stage % 2 else engine.optimizer.optimizer
            refuses("optimizer.state = {} on every rank", kept.state.clear)
            saved = optimizer.state_dict()
            given = {next(model.parameters()): {name: torch.ones(1)}}
            for refused in (given, copy.deepcopy(kept.state)):
                kept.state = refused
                refuses("optimizer.state was replaced", engine.step)
            kept.state = {}
            optimizer.load_state_dict(saved)  # which counts, as it comes after
            again = optimizer.state_dict()["state"]
            assert all(again[key][name].any() for key in again)
            kept.state = collections.defaultdict(dict)
            train(engine, 1, first=STEPS)
            for parameter, other in zip(model.parameters(), plain.parameters(), strict=True):
                found = optimizer.state[parameter]
                assert int(found.get("step", 1)) == 1
                value = whole(engine, found.get(name, torch.empty(0)))
                expected = of_plain.state[other][name].view(value.shape)
                assert torch.allclose(value, expected, atol=1e-6)


def case_states_in_8_bits_are_those_of_deepspeeds_file(folder: Path) -> None:
    path = next(p for p in unpack(folder, "deepspeed_checkpoints.tar.xz") if "fp32" in p.name)
    found = {}
    for kind in ("AdamW", "AdamW8bit"):
        for stage in (1, 3):
            engine = engine_for(stage, optimizer={"type": kind, "params": {"lr": 1e-2}})
            engine.load_checkpoint(path)
            for name, parameter in engine.module.named_parameters():
                for state in ("exp_avg", "exp_avg_sq"):
                    values = safe_get_full_optimizer_state(parameter, state)
                    found[kind, stage, name, state] = values
    assert all(values is None or values.any() for values in found.values())
    for (kind, *place), exact in found.items():
        if kind == "AdamW" and exact is not None:
            bound = exact.abs().max().item() / 100  # of a code, in a block of 256 elements
            coded = found[("AdamW8bit", *place)]
            torch.testing.assert_close(coded, exact, rtol=1 / 16, atol=bound)


def case_a_scheduler_of_another_optimizer_is_an_error() -> None:
    model = make()
    others = torch.optim.lr_scheduler.LambdaLR(adamw(make()), lambda epoch: 0.5)
    for given, keys in ((adamw(model), {}), (None, {"optimizer": {"type": "AdamW"}})):
        text = "an optimizer that is not this engine's"
        settings = config(1, **keys)
        refuses(text, initialize, model, given, lr_scheduler=others, config=settings)
    loss_of(model, part_of(batch_of(0))).backward()  # the model is as it was


def case_states_that_the_given_optimizer_has_go_on() -> None:
    expected, basic = trained(adamw)
    losses = [torch_step(expected, basic, STEPS + step) for step in range(STEPS)]
    for stage in STAGES:
        model, optimizer = trained(adamw)
        engine, *_ = initialize(model, optimizer, config=config(stage))
        assert int(optimizer.state[model.blocks[0].up.weight]["step"]) == STEPS
        assert_close(train(engine, STEPS, STEPS), losses)
        engine.destroy()
        assert not optimizer.state  # nothing is left of before
        model, optimizer = trained(adamw)
        engine, *_ = initialize(model, optimizer, config=config(stage))
        engine.destroy()  # unused: the states are what they were
        assert set(optimizer.state) == set(model.parameters())


class Counting(torch.optim.SGD):
    """Its states of no parameter have dtypes that numbers alone would lose."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.state["steps"] = torch.tensor([self.state.get("steps", torch.zeros(1)).item() + 1])
        self.state["steps"] = self.state["steps"].to(torch.float64) + 2**-40
        self.state["seen"] = torch.tensor([3], dtype=torch.uint8)
        self.state["scale"] = torch.tensor(0.1, dtype=torch.bfloat16)
        self.state["parts"] = {"tensor": torch.empty(0, 2, dtype=torch.int32), "left": [None, 1]}


def case_states_of_no_parameter_keep_their_dtypes(folder: Path) -> None:
    def start() -> tuple[zerorun.ZeroEngine, torch.optim.Optimizer]:
        model = make()
        basic = Counting(model.parameters(), lr=0.1)
        return initialize(model, basic, config=config(3))[0], basic

    engine, basic = start()
    train(engine, STEPS)
    expected = {key: value for key, value in basic.state.items() if isinstance(key, str)}
    engine.save_checkpoint(str(folder))
    in_memory = engine.optimizer.state_dict()
    for load in (
        lambda other: other.load_checkpoint(str(folder)),
        lambda other: other.optimizer.load_state_dict(in_memory),
    ):
        other, basic = start()
        load(other)
        for key, value in expected.items():
            torch.testing.assert_close(basic.state[key], value, rtol=0.0, atol=0.0)
        train(other, 1)  # changes nothing of what was loaded


def case_states_that_no_rule_could_have_are_errors() -> None:
    def given(change: Callable[[torch.optim.Optimizer], object]) -> Callable[[], object]:
        model = make()
        optimizer = adamw(model)
        torch_step(model, optimizer, 0)
        change(optimizer)
        return lambda: initialize(model, optimizer, config=config(1))

    first = given(lambda o: next(iter(o.state.values()))["step"].add_(1))
    refuses("has made 1 steps of one parameter and 2 of another", first)
    shape = given(lambda o: next(iter(o.state.values())).update(exp_avg=torch.zeros(3)))
    refuses("have shapes", shape)
    model = make()
    optimizer, weight = sgd(model), model.blocks[0].up.weight
    optimizer.state[weight]["momentum_buffer"] = torch.ones(3)
    refuses("blocks.0.up.weight has shape (3,)", initialize, model, optimizer, config=config(1))
    if WORLD_SIZE > 1:
        some = given(lambda o: o.state.clear() if RANK else None)
        refuses("has states of 0 parameters on one rank", some)
