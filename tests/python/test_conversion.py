"""zerorun ckpt import and export, which are engines of one rank: here this process."""

import warnings

import torch
import torch.distributed.checkpoint as dcp
import zerorun
from prelude import *
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from uneven_model import CONTINUED, SAVED_AFTER, config_of, groups_of, loss_of, make_model, rows_of
from zerorun import conversion
from zerorun.interchange.source import optimizer_of
from zerorun.model.tensors import SAFETENSORS_NAMES
from zerorun.optimizers.saved_values import COMMON_STATES, check_groups, common_states


def losses_of(run: Path) -> list[float]:
    return json.loads((run / "losses.json").read_text())["losses"]


def convert(command: str, source: Path, target: Path, options: str = "", code: int = 0) -> None:
    words = [command, str(source), str(target), *options.split()]
    assert conversion.main(words) == code


def alone(use: Callable[..., object], content: dict[str, object], folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        use(content, checkpoint_id=folder, no_dist=True)


def started(
    stage: int,
    dtype: str = "fp32",
    *,
    schedule: bool = False,
    model: nn.Module | None = None,
    **keys: object,
) -> zerorun.ZeroEngine:
    """An engine of one rank, for the model that was saved unless another is given."""
    model = make_model() if model is None else model
    config = config_of(stage, dtype, 1) | keys
    if not schedule:
        del config["scheduler"]
    return zerorun.initialize(model, model_parameters=groups_of(model), config=config)[0]


def refuses_to_load(engine: zerorun.ZeroEngine, folder: Path, text: str, **keys: object) -> None:
    """With this error, and changes nothing."""
    before = engine._core.parameter_hash()
    raises(zerorun.CheckpointError, text, engine.load_checkpoint, folder, **keys)
    assert engine._core.parameter_hash() == before


def continued(engine: zerorun.ZeroEngine) -> list[float]:
    losses = []
    for step in range(SAVED_AFTER, SAVED_AFTER + CONTINUED):
        loss = loss_of(engine, rows_of(step, 0, 1))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@each("name dtype bound", ("stage1-fp32-3", "fp32", 1e-6), ("stage3-bf16-2", "bf16", 1e-2))
def test_an_imported_checkpoint_goes_on_as_there(
    runs: Path, tmp_path: Path, name: str, dtype: str, bound: float
) -> None:
    convert("import", runs / name, tmp_path)
    engine = started(3, dtype, schedule=True)
    assert engine.load_checkpoint(tmp_path)[1] == {"epoch": 4, "order": [3, 1, 2]}
    assert engine.global_steps == engine._core.step_count == SAVED_AFTER
    assert continued(engine) == pytest.approx(losses_of(runs / name), rel=bound)


@each("stage", 1, 3)
def test_an_imported_folder_of_fsdp2_goes_on(tmp_path: Path, caplog: Log, stage: int) -> None:
    """It names neither ties nor buffers, and has both."""
    with tarfile.open(Path(__file__).parent / "data" / "fsdp2_checkpoint.tar.xz") as file:
        file.extractall(tmp_path, filter="data")
    source = tmp_path / "checkpoint"
    convert("import", source, tmp_path / "own")
    assert "buffers: calls (--tensor NAME=frozen" in caplog.text
    assert "head.weight = embedding.weight (--tensor NAME=frozen" in caplog.text
    (manifest,) = (tmp_path / "own").glob("*/checkpoint.json")  # which ckpt show shows
    groups = json.loads(manifest.read_text())["groups"]
    shown = [(group["lr"], group["weight_decay"]) for group in groups]
    assert shown == [pytest.approx((1e-2, 0.1)), pytest.approx((1e-2, 0.0))]
    engine = started(stage)
    engine.load_checkpoint(tmp_path / "own")
    assert engine.module.calls.item() == SAVED_AFTER
    assert continued(engine) == pytest.approx(losses_of(source), rel=1e-6)
    convert("import", source, tmp_path / "untied", "--tensor head.weight=frozen")
    refuses_to_load(engine, tmp_path / "untied", "is untied, in this model tied")


def groups_of_core(engine: zerorun.ZeroEngine) -> list[dict[str, object]]:
    return [{k: v for k, v in g.items() if k != "params"} for g in engine.optimizer.param_groups]


@each("kind", "hugging_face", "stage0", "elastic")
def test_settings_that_a_source_does_not_have_are_the_engines_own(
    runs: Path, tmp_path: Path, caplog: Log, kind: str
) -> None:
    source, own = tmp_path / "source", tmp_path / "own"
    saved = make_model().state_dict()
    if kind == "elastic":  # DeepSpeed's, with states but no hyperparameters
        source = runs / "stage1-elastic-fp32-2"
        convert("import", source, own)
    else:
        source.mkdir()
        numbered = {"state": {0: {"exp_avg": torch.ones(17, 7)}}, "param_groups": [{"params": [0]}]}
        content = {"module": saved, "buffer_names": ["calls"], "optimizer": numbered}
        if kind == "stage0":  # whose states have numbers, not names
            torch.save(content | {"param_shapes": None}, source / "mp_rank_00_model_states.pt")
        else:
            torch.save(saved, source / "pytorch_model.bin")
        convert("import", source, own, "--tensor fixed.*=frozen")
        assert "optimizer states begin anew" in caplog.text
    results = []
    for folder in (source, own):
        engine = started(2, model=type(make_model())())  # with values of its own
        before = groups_of_core(engine)
        engine.load_checkpoint(folder, load_optimizer_states=kind == "elastic" or folder == own)
        assert groups_of_core(engine) == before
        assert engine._core.step_count == (SAVED_AFTER if kind == "elastic" else 0)
        results.append(continued(engine))
    assert results[0] == results[1]
    assert results[0][-1] != results[0][0]
    if kind != "elastic":
        convert("export", own, tmp_path / "dcp", "--to dcp")
        names = dcp.FileSystemReader(tmp_path / "dcp").read_metadata().state_dict_metadata
        assert {*names} == {f"model.{name}" for name in saved}


ADAMW = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {}}}


def bytes_of(value: torch.Tensor) -> torch.Tensor:
    return value.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8)


def with_buffers(value: int) -> nn.Module:
    model = nn.Linear(4, 4)
    for dtype, name in SAFETENSORS_NAMES.items():
        number = complex(value, -1) if dtype.is_complex else float(value)
        model.register_buffer(name, torch.full((2, 3), number).to(dtype))
    model.register_buffer("expanded", torch.arange(value, value + 3).expand(2, 3))
    model.register_buffer("conjugate", torch.tensor([complex(value, 1)]).conj())
    model.register_buffer("transposed", torch.arange(6).view(2, 3).t() * value)
    model.register_buffer("number", torch.tensor(value))
    model.register_buffer("none_of_them", torch.empty(0, value))
    return model


def test_buffers_of_every_kind_are_saved_and_exported(tmp_path: Path) -> None:
    engine = zerorun.initialize(with_buffers(3), config=ADAMW)[0]
    expected = {name: bytes_of(value) for name, value in engine.module.named_buffers()}
    engine.save_checkpoint(tmp_path / "own")
    for kind in ("safetensors", "bin", "dcp"):
        convert("export", tmp_path / "own", tmp_path / kind, f"--to {kind}")
    convert("import", tmp_path / "dcp", tmp_path / "again")
    for folder in ("own", "safetensors", "bin", "dcp"):
        model = with_buffers(5)
        model.none_of_them = torch.empty(0, 3)
        engine = zerorun.initialize(model, config=ADAMW)[0]
        engine.load_checkpoint(tmp_path / folder)
        for name, value in model.named_buffers():
            assert torch.equal(bytes_of(value), expected[name]), (folder, name)


def test_a_buffer_that_cannot_hold_the_saved_values_is_an_error(tmp_path: Path) -> None:
    for saved, own in (
        (torch.tensor([1 + 2j]), torch.zeros(1)),
        (torch.tensor([0.5]), torch.zeros(1, dtype=torch.int64)),
    ):
        for buffer in (saved, own):
            model = nn.Linear(4, 4)
            model.register_buffer("table", buffer)
            engine = zerorun.initialize(model, config=ADAMW)[0]
            if buffer is saved:
                engine.save_checkpoint(tmp_path)
        expected = f"the buffer table is {saved.dtype}, in this model {own.dtype}"
        refuses_to_load(engine, tmp_path, expected)
        engine.load_checkpoint(tmp_path, load_module_strict=False)
        assert not engine.module.table.any()


def test_a_tied_parameter_of_which_a_folder_has_two_values_is_an_error(tmp_path: Path) -> None:
    """As a model that is not tied leaves them."""
    values = {name: value.clone() for name, value in make_model().state_dict().items()}
    values["head.weight"][3, 2] += 1
    alone(dcp.save, {"model": values}, tmp_path)
    engine = started(3, schedule=True)
    expected = "embedding.weight and head.weight are one parameter of this model"
    refuses_to_load(engine, tmp_path, expected, load_optimizer_states=False)
    engine.load_checkpoint(tmp_path, load_optimizer_states=False, load_module_strict=False)


def test_weight_decay_keeps_its_kind(tmp_path: Path) -> None:
    """Adam with L2 and AdamW keep states of the same names."""
    adam, adamw = ({"type": "Adam", "params": {"adam_w_mode": mode}} for mode in (False, True))
    engine = started(1, schedule=True, optimizer=adam)
    engine.backward(loss_of(engine, rows_of(0, 0, 1)))
    engine.step()
    engine.save_checkpoint(tmp_path / "own")
    convert("export", tmp_path / "own", tmp_path / "dcp", "--to dcp")
    convert("import", tmp_path / "dcp", tmp_path / "again")
    assert optimizer_of(tmp_path / "again") == ("zerorun's Adam", False)
    for name in ("own", "dcp"):
        engine = started(1, schedule=True, optimizer=adamw)
        refuses_to_load(engine, tmp_path / name, "are those of Adam with L2")
        engine.load_checkpoint(tmp_path / name, load_optimizer_states=False)
        engine = started(1, schedule=True, optimizer=adam)
        engine.load_checkpoint(tmp_path / name)
        assert engine._core.step_count == 1


@each("through", "directly", "through zerorun")
def test_torch_goes_on_from_an_exported_folder(runs: Path, tmp_path: Path, through: str) -> None:
    run = source = runs / "stage2-fp32-2"
    if through == "through zerorun":
        source = tmp_path / "own"
        convert("import", run, source)
    out = tmp_path / "dcp"
    convert("export", source, out, "--to dcp")
    convert("export", out, out, "--to dcp", code=2)  # onto itself
    model = make_model()
    optimizer = torch.optim.AdamW(groups_of(model), lr=1.0)
    saved, states = get_state_dict(model, optimizer)
    alone(dcp.load, {"model": saved, "optim": states}, out)
    set_state_dict(model, optimizer, model_state_dict=saved, optim_state_dict=states)
    assert optimizer.param_groups[0]["eps"] == 1e-6
    losses = []
    for step in range(SAVED_AFTER, SAVED_AFTER + CONTINUED):
        for group in optimizer.param_groups:  # DeepSpeed's schedule, which torch has not
            group["lr"] = 1e-2 * (step - 1) / 8
        loss = loss_of(model, rows_of(step, 0, 1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses == pytest.approx(losses_of(run), rel=1e-6)


def test_what_cannot_be_converted_is_one_line(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    run = runs / "stage1-fp32-1"
    for command, source, options, code, message in (
        ("import", tmp_path, "", 1, "no checkpoint of DeepSpeed, Hugging Face or"),
        ("import", run, "--tensor a", 2, "NAME=KIND"),
        ("export", tmp_path, "", 1, str(tmp_path)),
        ("export", run, "--to dcp --dtype bf16", 2, "--dt"),
        ("export", run, "--max_shard_size big", 2, "'5GB'"),
        ("export", run, "--to universal", 2, "--to dcp"),
    ):
        convert(command, source, tmp_path / "x", options, code)
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"zerorun ckpt {command}: error: ")
        assert message in line


def contents_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@each("place", "", "global_step*", "the folder above, without latest")
def test_an_import_into_its_own_source_is_refused_and_changes_nothing(
    runs: Path, tmp_path: Path, capsys: Capture, place: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "stage1-fp32-1", run)
    (checkpoint,) = run.glob("global_step*")
    source, target = run, checkpoint if place.startswith("global") else run
    if place.startswith("the folder"):
        (run / "latest").unlink()
        source = checkpoint
    before = contents_of(run)
    convert("import", source, target, code=2)
    assert "of another program, some files of which would be replaced" in capsys.readouterr().err
    assert contents_of(run) == before


def test_a_damaged_checkpoint_is_not_exported(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(runs / "stage2-fp32-2", run)
    file = max(run.rglob("*optim_states.pt"), key=lambda path: path.stat().st_size)
    with zipfile.ZipFile(file) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
    content = bytearray(file.read_bytes())
    content[largest.header_offset + 256 + largest.file_size // 2] ^= 0x10
    file.write_bytes(content)
    convert("export", run, out, "--to dcp", code=1)
    assert file.name in capsys.readouterr().err
    assert not out.exists()


@each("states", 3, {"step": {"tensor": "x"}})
def test_states_of_no_parameter_are_checked_before_anything_is_loaded(states: object) -> None:
    groups = [{"lr": 0.1}, {"lr": 0.1, COMMON_STATES: states}]
    told = "parameter group 1: zerorun_common_states"
    raises(zerorun.CheckpointError, told, check_groups, groups, "here", external=True)
    groups[1][COMMON_STATES] = {"step": {"tensor": [1.0, 2.0]}, "k": 3}
    check_groups(groups, "here", external=True)
    assert common_states(groups[1], "here")["step"].tolist() == [1.0, 2.0]
