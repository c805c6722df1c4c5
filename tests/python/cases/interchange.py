"""Other programs' checkpoints in engines; real DeepSpeed and PyTorch wrote those in data/."""

import tarfile

import uneven_model
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemReader
from uneven_model import CONTINUED, SAVED_AFTER, UnevenModel, groups_of, make_model
from zerorun.consolidate import save_model
from zerorun.interchange import untrusted

from cases.models import *
from cases.untrusted import Malicious


def unpack(folder: Path, archive: str) -> list[Path]:
    if RANK == 0:
        folder.mkdir(exist_ok=True)
        with tarfile.open(HERE / "data" / archive) as file:
            file.extractall(folder, filter="data")
    communicator.world(30).barrier()
    return sorted(path for path in folder.iterdir() if path.is_dir())


def engine_for(
    stage: int,
    dtype: str = "fp32",
    model: nn.Module | None = None,
    own: Callable[..., torch.optim.Optimizer] | None = None,
    **keys: Any,
) -> zerorun.ZeroEngine:
    """`own`: makes an optimizer in place of the configuration's."""
    model = make_model() if model is None else model
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.mul_(0.5)  # other values than those that are loaded
    zero = {"stage3_param_persistence_threshold": 0}
    config = uneven_model.config_of(stage, dtype, WORLD_SIZE, **zero) | keys
    groups = groups_of(model)
    if own is None:
        return initialize(model, model_parameters=groups, config=config)[0]
    del config["optimizer"]
    return initialize(model, own(groups), config=config)[0]


def go_on(engine: zerorun.ZeroEngine) -> list[float]:
    def own(model: nn.Module, step: int) -> torch.Tensor:
        return uneven_model.loss_of(model, uneven_model.rows_of(step, RANK, WORLD_SIZE))

    return train(engine, CONTINUED, SAVED_AFTER, own)


def goes_on_as_there(engine: zerorun.ZeroEngine, path: Path, dtype: str = "fp32") -> None:
    record = json.loads((path / "losses.json").read_text())
    assert_close(go_on(engine), record["losses"], 1e-6 if dtype == "fp32" else 1e-2)
    assert engine._core.loss_scale == record.get("loss_scale", 1.0)


def case_deepspeeds_checkpoints_go_on_as_there(folder: Path) -> None:
    """Each at another stage than it was saved at, on as many ranks as there are."""
    runs = unpack(folder, "deepspeed_checkpoints.tar.xz")
    assert len(runs) == 13
    for number, path in enumerate(runs):
        dtype = next((name for name in ("bf16", "fp16") if name in path.name), "fp32")
        engine = engine_for(number % 4, dtype)
        client_state = {"epoch": 4, "order": [3, 1, 2]}
        assert engine.load_checkpoint(path) == (str(path / "global_step3"), client_state)
        assert engine.global_steps == engine._core.step_count == SAVED_AFTER
        assert engine.module.calls.item() == SAVED_AFTER
        goes_on_as_there(engine, path, dtype)


class OwnAdamW(torch.optim.AdamW):
    """An optimizer that the engine steps as it is, on shards."""


def case_torchs_own_optimizers_count_steps_as_there(folder: Path) -> None:
    """The file has one count for a group: it must not become that of several shards."""
    for path in unpack(folder, "deepspeed_checkpoints.tar.xz"):
        if "fp32" in path.name and "elastic" not in path.name:
            engine = engine_for(1, own=functools.partial(OwnAdamW, lr=1e-3))
            engine.load_checkpoint(path)
            goes_on_as_there(engine, path)


def case_parts_of_a_training_as_asked(folder: Path) -> None:
    path = unpack(folder, "deepspeed_checkpoints.tar.xz")[-1]
    engine, zero = engine_for(2), zerorun.zero
    weight = engine.module.first.weight
    engine.load_checkpoint(path, load_module_only=True)
    assert engine.global_steps == engine._core.step_count == 0
    masters = zero.safe_get_full_fp32_param(weight)
    assert not zero.safe_get_full_optimizer_state(weight, "exp_avg").any()
    rates = [group["lr"] for group in engine.optimizer.param_groups]
    engine.load_checkpoint(path, "global_step3", load_lr_scheduler_states=False)
    assert engine._core.step_count == SAVED_AFTER
    assert engine.lr_scheduler.last_batch_iteration < SAVED_AFTER - 1
    assert rates != [group["lr"] for group in engine.optimizer.param_groups]
    assert torch.equal(masters, zero.safe_get_full_fp32_param(weight))
    assert zero.safe_get_full_optimizer_state(weight, "exp_avg").any()


def case_what_does_not_fit_is_told_at_once(folder: Path) -> None:
    path = next(p for p in unpack(folder, "deepspeed_checkpoints.tar.xz") if "stage3" in p.name)
    renamed = make_model()
    renamed.secnd, renamed.first = renamed.second, nn.Linear(7, 12)
    del renamed.second
    shapes = "first.weight has shape (12, 7), in the checkpoint (11, 7)"
    ours = "the model has secnd.weight, the checkpoint not (which has second.weight)"
    theirs = "the checkpoint has second.bias, the model not (which has secnd.bias)"
    refuses_to_load(engine_for(3, model=renamed), path, shapes, ours, theirs)
    engine = engine_for(1, optimizer={"type": "Lion", "params": {"lr": 1e-3}})
    text = "optimizer states ['exp_avg', 'exp_avg_sq'], this engine's Lion keeps ['exp_avg']"
    refuses_to_load(engine, path, text)
    engine.load_checkpoint(path, load_optimizer_states=False)
    engine = engine_for(2, own=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    text = "optimizer has ['betas', 'eps'], this engine's SGD ['dampening', 'momentum', 'nest"
    refuses_to_load(engine, path, text)


def forge(path: Path, *keys: Any, value: Any) -> None:
    content = untrusted.read(str(path))
    content.get("optimizer_state_dict", {}).update(loss_scaler=None, param_slice_mappings=[])
    at = content
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    torch.save(content, path.with_suffix(".new"))  # its tensors are parts of the old file
    path.with_suffix(".new").replace(path)


STATES = "zero_pp_rank_{}_mp_rank_00_optim_states.pt"
MODEL = "mp_rank_00_model_states.pt"
GROUP = ("optimizer_state_dict", "base_optimizer_state", "param_groups", 0)
MOMENTS = ("optimizer_state_dict", "base_optimizer_state", "state", 0)
SCHEDULE = ("lr_scheduler", "last_batch_iteration")
# In files that are intact, values that no training has: what the error says, and where they are.
FORGED: dict[str, tuple[str, tuple[Any, ...], Any]] = {
    "step": ("is 'x', expected a whole number from 0 on", (*MOMENTS, "step"), "x"),
    "other step": ("step 3, another rank's file has 2", (*MOMENTS, "step"), 2),
    "rate": ("lr of parameter group 0 is -1,", (*GROUP, "lr"), -1),
    "betas": ("betas of parameter group 0 is '../x'", (*GROUP, "betas"), "../x"),
    "sparse": ("are not complete", (*MOMENTS, "exp_avg"), torch.eye(400).to_sparse()),
    "steps": ("global_steps is -1, expected", ("global_steps",), -1),
    "schedule": ("lr_scheduler is '1', expected", ("lr_scheduler",), "1"),
    "position": ("last_batch_iteration is [1], expected", SCHEDULE, [1]),
    "another": ("keeps ['last_batch_iteration']", ("lr_scheduler",), {"last_epoch": 3}),
    "buffer": ("the buffer calls is not a tensor", ("module", "calls"), "x"),
}


def damages(tag: Path) -> dict[str, tuple[str, Callable[[], Any]]]:
    """By name: what the error says, and the deed. `tag` is a checkpoint of stage 1 on 3 ranks."""
    model, second, latest = tag / MODEL, tag / STATES.format(1), tag.parent / "latest"

    def poison() -> None:
        content = torch.load(model, weights_only=False)
        torch.save(content | {"epoch": Malicious(tag / "made")}, model)

    def forgery(keys: tuple[Any, ...], value: Any) -> Callable[[], None]:
        path = tag / STATES.format(0) if keys[0] == "optimizer_state_dict" else model
        return functools.partial(forge, path, *keys, value=value)

    return {
        "flipped": (
            "damaged: the checksum of",
            lambda: flip(second, second.read_bytes().index(b"data/0") + 300),
        ),
        "short": (second.name, lambda: second.write_bytes(second.read_bytes()[:-500])),
        "missing": ("the optimizer states of ranks [1]", second.unlink),
        "fewer": ("2 files *_optim_states.pt, expected", (tag / STATES.format(2)).unlink),
        "none": (
            "no file *_optim_states.pt is there",
            lambda: [path.unlink() for path in tag.glob("*_optim_states.pt")],
        ),
        "far": (
            "the optimizer states of ranks [3, 4, 5, 6, 7, 8, 9, 10] are missing",
            lambda: shutil.copy(second, tag / STATES.format(10**11)),
        ),
        "no text": ("can't decode byte", lambda: latest.write_bytes(b"\xff")),
        "no model": (f"neither {MODEL}", model.unlink),
        "experts": ("experts (MoE) in files", (tag / f"layer_0_expert_1_{MODEL}").touch),
        "text": (model.name, lambda: model.write_text("no pickle")),
        "hostile": ("it names the class or function getattr", poison),
        "elsewhere": ("expected the name of", lambda: latest.write_text("../x")),
        **{name: (text, forgery(keys, value)) for name, (text, keys, value) in FORGED.items()},
    }


def case_damaged_or_hostile_files_change_nothing(folder: Path) -> None:
    unpack(folder / "whole", "deepspeed_checkpoints.tar.xz")
    engine = engine_for(3)
    for name in damages(folder):
        path = folder / name / "run"
        message, deed = damages(path / "global_step3")[name]
        if RANK == 0:
            shutil.copytree(folder / "whole" / "stage1-fp32-3", path)
            deed()
        engine.communicator.barrier()
        refuses_to_load(engine, path, message)
    assert not list(folder.rglob("made"))
    damaged = folder / "flipped" / "run"
    out = folder / f"out{RANK}"
    raises(zerorun.CheckpointError, "the checksum of", save_model, damaged, out)
    assert not out.exists()


def case_fsdp2s_checkpoint_goes_on_as_there(folder: Path) -> None:
    (path,) = unpack(folder, "fsdp2_checkpoint.tar.xz")
    scheduler = {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01}}
    for stage in (1, 3):
        engine = engine_for(stage, scheduler=scheduler)
        assert engine.load_checkpoint(path) == (str(path), {})
        engine.lr_scheduler = None  # there was none there
        assert engine._core.step_count == SAVED_AFTER
        goes_on_as_there(engine, path)


def case_names_of_compiled_modules_are_the_models(folder: Path) -> None:
    saved = make_model()
    names = {name: name.replace("first.", "first._orig_mod.") for name in saved.state_dict()}
    if RANK == 0:
        state = {names[name]: value for name, value in saved.state_dict().items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells that there is one process
            dcp.save({"model": state}, checkpoint_id=folder, no_dist=True)
    engine = engine_for(3)
    engine.communicator.barrier()
    engine.load_checkpoint(folder, load_optimizer_states=False)
    assert_same(engine.full_state_dict(rank0_only=False), dict(saved.state_dict()))


def case_metadata_that_leads_elsewhere_or_names_code_is_refused(folder: Path) -> None:
    (path,) = unpack(folder, "fsdp2_checkpoint.tar.xz")
    engine, made = engine_for(2), folder / "made"
    moved, outside = (FileSystemReader(path).read_metadata() for _ in range(2))
    places = {index.fqn: (index, place) for index, place in moved.storage_data.items()}
    moved.storage_data[places["model.first.weight"][0]] = places["model.first.bias"][1]
    for place in outside.storage_data.values():
        place.relative_path = "../elsewhere"
    for content, message in (
        (moved, "got 5 elements of torch.float32, 35 elements of torch.float32 were saved"),
        (Malicious(made), "it names pathlib.Path.touch"),
        (outside, "got '..', expected the name of something in the same folder"),
    ):
        engine.communicator.barrier()
        if RANK == 0:
            (path / ".metadata").write_bytes(pickle.dumps(content))
        engine.communicator.barrier()
        refuses_to_load(engine, path, message)
    assert not made.exists()


def case_weights_that_no_model_has_change_nothing(folder: Path) -> None:
    engine = engine_for(3)
    dense, number = "expected names with dense tensors", torch.zeros(11, 7, dtype=torch.complex64)
    for name, wrong, message in (
        ("sparse", {"first.weight": torch.eye(3).to_sparse()}, dense),
        ("complex", {"first.weight": number}, "is torch.complex64, in this model torch.float32"),
        ("number", {7: torch.zeros(3)}, dense),
        ("loop", None, "expected a file, or a link to one"),
    ):
        if RANK == 0:
            (folder / name).mkdir()
            if wrong:
                torch.save(make_model().state_dict() | wrong, folder / name / "pytorch_model.bin")
            else:
                (folder / name / "model.safetensors").symlink_to("model.safetensors")
        engine.communicator.barrier()
        refuses_to_load(engine, folder / name, message)


def case_hugging_faces_files_go_into_engines(folder: Path) -> None:
    from zerorun.interchange.hugging_face import Weights

    run = next(p for p in unpack(folder, "deepspeed_checkpoints.tar.xz") if "stage3" in p.name)
    kinds = [(safe, size) for safe in (True, False) for size in (None, "300B")]
    if RANK == 0:
        for number, (safe, size) in enumerate(kinds):
            save_model(run, folder / f"hf{number}", safe_serialization=safe, max_shard_size=size)
    communicator.world(30).barrier()
    engine = engine_for(2)
    engine.load_checkpoint(run)
    expected = engine._core.parameter_hash()
    for number in range(len(kinds)):
        path = folder / f"hf{number}"
        engine = engine_for(number % 4)
        go_on(engine)
        with logged() as lines:
            assert engine.load_checkpoint(path) == (str(path), {})
        assert any("optimizer states begin anew" in line for line in lines)
        assert engine._core.parameter_hash() == expected
        assert engine._core.step_count == 0
        assert engine.module.calls.item() == SAVED_AFTER
        with torch.device("meta"):
            model = UnevenModel()
        engine = shard(model, weights=Weights(path))
        engine._core.refresh_from_masters()
        assert engine._core.parameter_hash() == expected
