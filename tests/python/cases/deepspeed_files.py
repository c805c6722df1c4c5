"""Checkpoints in DeepSpeed's layout, written by hand: kinds that are not among those in data/."""

from torch.distributed.checkpoint.state_dict import *
from uneven_model import groups_of, make_model

from cases.interchange import engine_for
from cases.models import *

TAG = "global_step5"


def write(folder: Path, model: dict[str, Any], optimizer: dict[str, Any] | None = None) -> None:
    """The files of one rank, seen by all ranks."""
    if RANK == 0:
        (folder / TAG).mkdir(parents=True)
        (folder / "latest").write_text(TAG)
        content = {"buffer_names": ["calls"], "ds_config": {}, "global_steps": 5} | model
        torch.save(content, folder / TAG / "mp_rank_00_model_states.pt")
        if optimizer is not None:
            path = folder / TAG / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
            torch.save({"optimizer_state_dict": optimizer}, path)


def case_a_checkpoint_without_zero_gives_its_values(folder: Path) -> None:
    saved = make_model()
    numbered = {"state": {0: {"exp_avg": torch.ones(17, 7)}}, "param_groups": [{"params": [0]}]}
    write(folder, {"module": saved.state_dict(), "optimizer": numbered, "param_shapes": None})
    engine = engine_for(3)
    engine.communicator.barrier()
    message = "without ZeRO (stage 0), whose optimizer states have no names; load_optimizer_states="
    refuses_to_load(engine, folder, message)
    engine.load_checkpoint(folder, load_optimizer_states=False)
    assert_same(engine.full_state_dict(rank0_only=False), dict(saved.state_dict()))


def write_zero(
    folder: Path, states: dict[str, float], group: Any, named: Any = str, **model: Any
) -> nn.Module:
    """A checkpoint of stage 1, whose optimizer's states are these multiples of the values. `named`:
    what it calls the trained parameters."""
    saved = make_model()
    name_of = {parameter: name for name, parameter in saved.named_parameters()}
    groups = [each["params"] for each in groups_of(saved)]
    flat = [torch.cat([p.detach().flatten() for p in each]) for each in groups]
    made = {
        "module": saved.state_dict(),
        "param_shapes": [{named(name_of[p]): p.shape for p in each} for each in groups],
        "shared_params": {"head.weight": "embedding.weight"},
    }
    steps = {"step": torch.tensor(4.0)} if "exp_avg" in states else {}
    base = {
        "state": {
            index: {name: values * factor for name, factor in states.items()} | steps
            for index, values in enumerate(flat)
        },
        "param_groups": [group | {"params": [index]} for index in range(len(flat))],
    }
    optimizer = {"zero_stage": 1, "partition_count": 1, "single_partition_of_fp32_groups": flat}
    write(folder, made | model, optimizer | {"base_optimizer_state": base})
    communicator.world(30).barrier()
    return saved


def case_states_without_a_count_have_the_steps_of_the_training(folder: Path) -> None:
    """Momentum needs no count of steps, so its optimizers save none."""
    states = {"momentum_buffer": 2.0}
    saved = write_zero(folder, states, {"lr": 0.25}, skipped_steps=1)
    engine = engine_for(2, optimizer={"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}})
    engine.load_checkpoint(folder, load_lr_scheduler_states=False)
    assert engine._core.step_count == 4
    assert engine.global_steps == 5
    assert [group["lr"] for group in engine.optimizer.param_groups] == [0.25, 0.25]
    weight = engine.module.first.weight
    momentum = safe_get_full_optimizer_state(weight, "momentum_buffer")
    assert torch.equal(momentum, saved.first.weight.detach() * 2)


def case_names_of_modules_in_wrappers_are_the_models(folder: Path) -> None:
    """DeepSpeed's shapes have the names of modules in wrappers, its state dict has not."""

    def wrapped(name: str) -> str:
        return name.replace("first.", "first._checkpoint_wrapped_module.")

    saved = write_zero(folder, {"momentum_buffer": 2.0}, {"lr": 0.25}, wrapped)
    engine = engine_for(2, optimizer={"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}})
    engine.load_checkpoint(folder, load_lr_scheduler_states=False)
    assert_same(engine.full_state_dict(rank0_only=False), dict(saved.state_dict()))
    momentum = safe_get_full_optimizer_state(engine.module.first.weight, "momentum_buffer")
    assert torch.equal(momentum, saved.first.weight.detach() * 2)


ADAM = {"exp_avg": 0.5, "exp_avg_sq": 0.0}
GROUP = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}


def with_optimizer(make_optimizer: Callable[..., torch.optim.Optimizer]) -> zerorun.ZeroEngine:
    model = make_model()
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    return initialize(model, make_optimizer(groups_of(model)), config=config)[0]


def case_states_of_another_adam_are_an_error(folder: Path) -> None:
    """Those of Adam and AdamW have the same names."""
    torchs = {kind: GROUP | {"decoupled_weight_decay": kind} for kind in (True, False)}
    ams = torchs[True] | {"amsgrad": True, "maximize": False}
    config = {"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}
    write_zero(folder / "short", ADAM, ams)
    write_zero(folder / "whole", ADAM | {"max_exp_avg_sq": 0.0}, ams)
    write_zero(folder / "adam", ADAM, torchs[False])
    write_zero(folder / "adamw", ADAM, torchs[True])
    write_zero(folder / "config", ADAM, GROUP, ds_config=config)
    write_zero(folder / "none", ADAM, torchs[False] | {"weight_decay": 0.0})
    amsgrad = functools.partial(torch.optim.AdamW, lr=0.1, amsgrad=True)
    text = "are those of Adam with L2, whose weight decay is added to the gradient (0.1), thi"
    for optimizer, name, problem in (
        (amsgrad, "short", "optimizer needs ['max_exp_avg_sq'], too; load_optimizer_states=False"),
        (torch.optim.AdamW, "short", "optimizer has amsgrad, which"),
        (torch.optim.AdamW, "adam", text),
        (torch.optim.AdamW, "config", text),
        (torch.optim.Adam, "adamw", "are those of AdamW, with decoupled weight decay (0.1), this "),
        (amsgrad, "whole", ""),
        (torch.optim.Adam, "adam", ""),
        (torch.optim.Adam, "config", ""),
        (torch.optim.AdamW, "adamw", ""),
        (torch.optim.AdamW, "none", ""),
    ):
        engine = with_optimizer(optimizer)
        if problem:
            rates = [group["lr"] for group in engine.optimizer.param_groups]
            refuses_to_load(engine, folder / name, problem)
            assert [group["lr"] for group in engine.optimizer.param_groups] == rates
        engine.load_checkpoint(folder / name, load_optimizer_states=not problem)
        assert engine._core.step_count == (0 if problem else 4)
        engine.backward(loss_of(engine, torch.ones(1, 5, dtype=torch.int64)))
        engine.step()


def case_weight_decay_of_a_state_dict_is_compared() -> None:
    model = make_model()
    adam = torch.optim.Adam(groups_of(model), lr=0.1)
    loss_of(model, torch.ones(1, 5, dtype=torch.int64)).backward()
    adam.step()
    whole = StateDictOptions(full_state_dict=True)
    state = get_optimizer_state_dict(model, adam, options=whole)
    for kind, count in ((torch.optim.AdamW, 0), (torch.optim.Adam, 1)):
        engine = with_optimizer(kind)
        given = (engine.module, engine.optimizer, state)
        if count:
            set_optimizer_state_dict(*given, options=whole)
        else:
            text = "are those of Adam with L2"
            raises(zerorun.CheckpointError, text, set_optimizer_state_dict, *given, options=whole)
        assert engine._core.step_count == count
