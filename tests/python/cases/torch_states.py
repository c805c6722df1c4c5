"""PyTorch's get_state_dict and set_state_dict of an engine's model and optimizer."""

import importlib

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import *
from torch.utils._pytree import tree_leaves
from zerorun import torch_seam

from cases.models import *

DTensor = importlib.import_module(torch_seam.DTENSORS).DTensor
FULL = StateDictOptions(full_state_dict=True)
ON_HOST = StateDictOptions(full_state_dict=True, cpu_offload=True)


def engine_at(stage: int, seed: int = 0, **keys: Any) -> Any:
    model = make(Scaled, seed)
    return initialize(model, adamw(model), config=config(stage, **keys))[:2]


def trained_by_torch(steps: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    model = make(Scaled)
    optimizer = adamw(model)
    for step in range(steps):
        torch_step(model, optimizer, step)
    return get_state_dict(model, optimizer)


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, dict):
            assert_same(found[name], value)
        elif isinstance(value, torch.Tensor):
            whole = found[name].full_tensor() if isinstance(found[name], DTensor) else found[name]
            assert whole.shape == value.shape, name
            # Where a gradient is nearly 0, Adam's first steps make much of its rounding.
            assert (whole.cpu() - value).abs().mean() < 1e-4, name


def tensors_in(states: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(states) if isinstance(leaf, torch.Tensor)]


def case_whole_and_sharded_states_are_torchs() -> None:
    with_process_group()
    model_state, optimizer_state = trained_by_torch(2)
    for stage in STAGES:
        engine, optimizer = engine_at(stage)
        train(engine, 2)
        for options in (FULL, ON_HOST, StateDictOptions(), StateDictOptions(cpu_offload=True)):
            found, states = get_state_dict(engine.module, optimizer, options=options)
            if options is ON_HOST and RANK > 0:
                assert (found, states) == ({}, {})
                continue
            assert_same(found, model_state)
            assert_same(states["state"], optimizer_state["state"])
            names = [group["params"] for group in states["param_groups"]]
            assert names == [group["params"] for group in optimizer_state["param_groups"]]
            is_sharded = isinstance(states["state"]["embedding.weight"]["exp_avg"], DTensor)
            assert is_sharded == (WORLD_SIZE > 1 and not options.full_state_dict)
        flattened = StateDictOptions(flatten_optimizer_state_dict=True)
        flat = get_optimizer_state_dict(engine.module, optimizer, options=flattened)
        assert "state.embedding.weight.exp_avg" in flat
        assert flat["param_groups.embedding.weight.weight_decay"] == 0.1


def case_steps_leave_whole_states_as_they_are() -> None:
    for stage in STAGES:
        engine, optimizer = engine_at(stage)
        train(engine, 1)
        for options in (FULL, ON_HOST):
            found = get_state_dict(engine.module, optimizer, options=options)
            before = copy.deepcopy(found)
            train(engine, 1, first=1)
            pairs = zip(tensors_in(found), tensors_in(before), strict=True)
            assert all(torch.equal(value, then) for value, then in pairs)


def case_frozen_parameters_are_left_out_when_that_is_asked() -> None:
    model = make(Scaled)
    model.embedding.weight.requires_grad_(False)
    engine, *_ = initialize(model, adamw(model), config=config(3))
    options = StateDictOptions(full_state_dict=True, ignore_frozen_params=True)
    found = get_model_state_dict(engine.module, options=options)
    assert "embedding.weight" not in found
    assert found["blocks.0.up.weight"].numel() == 128 * 32


def case_states_go_on_through_torchs_checkpoints(folder: Path) -> None:
    """As an FSDP2 program saves and loads: sharded, in the folder of dcp.save."""
    with_process_group()
    for stage, keys in ((0, BF16), (2, {}), (3, {}), (3, BF16)):
        path = str(folder / f"{stage}{len(keys)}")
        engine, optimizer = engine_at(stage, **keys)
        train(engine, 2)
        model_state, states = get_state_dict(engine.module, optimizer)
        dcp.save({"model": model_state, "optim": states}, checkpoint_id=path)
        expected = train(engine, 2, first=2)
        engine.destroy()
        engine, optimizer = engine_at(stage, seed=1, **keys)
        model_state, states = get_state_dict(engine.module, optimizer)
        dcp.load({"model": model_state, "optim": states}, checkpoint_id=path)
        given = {"model_state_dict": model_state, "optim_state_dict": states}
        set_state_dict(engine.module, optimizer, **given)
        assert engine._core.step_count == 2
        assert train(engine, 2, first=2) == expected


def case_saves_of_a_state_dict_that_was_kept_are_of_now_or_an_error(folder: Path) -> None:
    """FSDP2's follow the steps: programs get them once, and save them again and again."""
    with_process_group()
    for stage in STAGES:
        engine, optimizer = engine_at(stage)
        kept = get_model_state_dict(engine.module)
        dcp.save({"model": kept}, checkpoint_id=str(folder / f"{stage} at 0"))
        train(engine, 1)
        path = {"checkpoint_id": str(folder / f"{stage}")}
        if stage == 3:
            for states in (kept, get_optimizer_state_dict(engine.module, optimizer)):
                train(engine, 1, first=1)
                then = engine._core.step_count - 2
                for save in (dcp.save, dcp.async_save):
                    text = f"of step {then} was to be saved 2 steps later, at step {then + 2}"
                    refuses(text, save, {"states": states}, **path)
            clones = {name: value.clone() for name, value in kept.items()}
            dcp.save({"model": clones}, checkpoint_id=str(folder / "clones"))
            kept, then = get_model_state_dict(engine.module), engine._core.step_count
            optimizer.state = {}  # whose steps count from 0 again
            train(engine, then)
            text = f"of step {then} was to be saved {then} steps later, at step {then}"
            refuses(text, dcp.save, {"model": kept}, **path)
            kept = get_model_state_dict(engine.module)
        dcp.save({"model": kept}, **path)
        expected = get_model_state_dict(engine.module, options=FULL)
        found = {name: torch.zeros_like(value) for name, value in expected.items()}
        dcp.load({"model": found}, **path)
        assert_same(found, expected)
        engine.destroy()
        dcp.save({"model": kept}, checkpoint_id=str(folder / f"{stage} after the engine"))


def case_whole_states_of_one_rank_go_on_everywhere() -> None:
    with_process_group()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True)
    for stage, flatten in ((1, True), (3, False)):
        options.flatten_optimizer_state_dict = flatten
        engine, optimizer = engine_at(stage)
        train(engine, 2)
        given = copy.deepcopy(get_state_dict(engine.module, optimizer, options=options))
        expected = train(engine, 2, first=2)
        engine.destroy()
        engine, optimizer = engine_at(stage, seed=1)
        optimizer.param_groups[0]["lr"] = 0.5
        # PyTorch's set_state_dict itself leaves out the model where a rank gives nothing.
        set_model_state_dict(engine.module, given[0], options=options)
        set_optimizer_state_dict(engine.module, optimizer, given[1], options=options)
        assert train(engine, 2, first=2) == expected


def case_states_that_do_not_fit_change_nothing() -> None:
    with_process_group()
    engine, optimizer = engine_at(3)
    train(engine, 1)
    model_state, states = get_state_dict(engine.module, optimizer, options=FULL)
    before = engine._core.parameter_hash()
    wrong = dict(model_state) | {"scale": torch.ones(2), "more": torch.ones(2)}
    put = functools.partial(set_model_state_dict, engine.module)
    for text in ("scale has shape (), in the state dict (2,)", "more is in one of the two only"):
        raises(zerorun.CheckpointError, text, put, wrong, options=FULL)
    some = StateDictOptions(full_state_dict=True, strict=False)
    assert "embedding.weight" in put({"scale": model_state["scale"]}, options=some).missing_keys
    moments = states["state"]["embedding.weight"]
    kept = {key: value.clone() for key, value in moments.items()}
    nan = {"step": torch.tensor(float("nan")), "exp_avg": kept["exp_avg"] + 1}
    for change, text in (
        (lambda: moments.update(nan), "embedding.weight.step is tensor(nan), expected a whole"),
        (lambda: states["param_groups"][0].update(lr=-1.0), "lr of parameter group 0 is -1.0"),
        (lambda: moments.pop("exp_avg"), "embedding.weight.exp_avg: got nothing, expected"),
    ):
        moments.update(kept)
        change()
        put_states = functools.partial(set_optimizer_state_dict, engine.module, optimizer, states)
        raises(zerorun.CheckpointError, text, put_states, options=FULL)
    assert engine._core.parameter_hash() == before
    assert optimizer.param_groups[0]["lr"] > 0
    found = safe_get_full_optimizer_state(engine.module.embedding.weight, "exp_avg")
    assert torch.equal(found, kept["exp_avg"])
    if WORLD_SIZE > 1:
        mine = model_state if RANK == 0 else {"scale": model_state["scale"]}
        raises(zerorun.CheckpointError, "broadcast_from_rank0=True", put, mine, options=some)


def case_what_is_not_there_is_an_error_that_names_the_call() -> None:
    model, engine = started(config(3), optimizer=rmsprop)
    text = "engine.save_checkpoint() saves all"
    refuses(text, get_optimizer_state_dict, model, engine.optimizer)
    engine.destroy()
    if WORLD_SIZE > 1:  # what is left is a model of zero.Init's, without an engine
        refuses("within zerorun.zero.GatheredParameters", get_model_state_dict, model, options=FULL)
