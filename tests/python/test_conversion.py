"""zerorun ckpt import and export, which are engines of one rank: here this process."""

import json
import shutil
import tarfile
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
import zerorun
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from uneven_model import (
    CONTINUED,
    SAVED_AFTER,
    config_of,
    groups_of,
    loss_of,
    make_model,
    rows_of,
)
from zerorun import conversion
from zerorun.interchange.own import optimizer_of
from zerorun.optimizers.saved_values import COMMON_STATES, check_groups, common_states

ARCHIVE = Path(__file__).parent / "data" / "deepspeed_checkpoints.tar.xz"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deepspeed")
    with tarfile.open(ARCHIVE) as file:
        file.extractall(folder, filter="data")
    return folder


def losses_of(run: Path) -> list[float]:
    return json.loads((run / "losses.json").read_text())["losses"]


def continued(engine: zerorun.ZeroEngine) -> list[float]:
    """The losses of the steps after those that were saved."""
    losses = []
    for step in range(SAVED_AFTER, SAVED_AFTER + CONTINUED):
        loss = loss_of(engine, rows_of(step, 0, 1))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("name", "dtype", "bound"), [("stage1-fp32-3", "fp32", 1e-6), ("stage3-bf16-2", "bf16", 1e-2)]
)
def test_an_imported_checkpoint_goes_on_as_there(
    runs: Path, tmp_path: Path, name: str, dtype: str, bound: float
) -> None:
    assert conversion.main(["import", str(runs / name), str(tmp_path)]) == 0
    model = make_model()
    config = config_of(3, dtype, 1)
    engine, *_ = zerorun.initialize(model, model_parameters=groups_of(model), config=config)
    assert engine.load_checkpoint(tmp_path)[1] == {"epoch": 4, "order": [3, 1, 2]}
    assert engine.global_steps == engine.core.step_count == SAVED_AFTER
    assert continued(engine) == pytest.approx(losses_of(runs / name), rel=bound)
    engine.destroy()


@pytest.mark.parametrize("stage", [1, 3])
def test_an_imported_folder_of_fsdp2_goes_on_as_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stage: int
) -> None:
    """It names neither ties nor buffers, and has both."""
    with tarfile.open(Path(__file__).parent / "data" / "fsdp2_checkpoint.tar.xz") as file:
        file.extractall(tmp_path, filter="data")
    source = tmp_path / "checkpoint"
    assert conversion.main(["import", str(source), str(tmp_path / "own")]) == 0
    assert "buffers: calls (--tensor NAME=frozen" in caplog.text
    assert "head.weight = embedding.weight (--tensor NAME=frozen" in caplog.text
    (manifest,) = (tmp_path / "own").glob("*/checkpoint.json")  # which ckpt show shows
    groups = json.loads(manifest.read_text())["groups"]
    shown = [(group["lr"], group["weight_decay"]) for group in groups]
    assert shown == [pytest.approx((1e-2, 0.1)), pytest.approx((1e-2, 0.0))]
    model = make_model()
    config = config_of(stage, "fp32", 1)
    del config["scheduler"]
    engine, *_ = zerorun.initialize(model, model_parameters=groups_of(model), config=config)
    engine.load_checkpoint(tmp_path / "own")
    assert engine.module.calls.item() == SAVED_AFTER
    assert continued(engine) == pytest.approx(losses_of(source), rel=1e-6)
    untied = [str(source), str(tmp_path / "untied"), "--tensor", "head.weight=frozen"]
    assert conversion.main(["import", *untied]) == 0
    with pytest.raises(zerorun.CheckpointError, match="is untied, in this model tied"):
        engine.load_checkpoint(tmp_path / "untied")
    engine.destroy()


def test_a_tied_parameter_of_which_a_folder_has_two_values_is_an_error(tmp_path: Path) -> None:
    """As a model that is not tied leaves them."""
    values = {name: value.clone() for name, value in make_model().state_dict().items()}
    values["head.weight"][3, 2] += 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        dcp.save({"model": values}, checkpoint_id=tmp_path, no_dist=True)
    model = make_model()
    config = config_of(3, "fp32", 1)
    engine, *_ = zerorun.initialize(model, model_parameters=groups_of(model), config=config)
    before = engine.core.parameter_hash()
    expected = "embedding.weight and head.weight are one parameter of this model"
    with pytest.raises(zerorun.CheckpointError, match=expected):
        engine.load_checkpoint(tmp_path, load_optimizer_states=False)
    assert engine.core.parameter_hash() == before
    engine.load_checkpoint(tmp_path, load_optimizer_states=False, load_module_strict=False)
    engine.destroy()


def test_weight_decay_keeps_its_kind(tmp_path: Path) -> None:
    """Adam with L2 and AdamW keep states of the same names."""

    def start(*, decoupled: bool) -> zerorun.ZeroEngine:
        model = make_model()
        config = config_of(1, "fp32", 1)
        config["optimizer"] = {"type": "Adam", "params": {"adam_w_mode": decoupled}}
        return zerorun.initialize(model, model_parameters=groups_of(model), config=config)[0]

    engine = start(decoupled=False)
    engine.backward(loss_of(engine, rows_of(0, 0, 1)))
    engine.step()
    engine.save_checkpoint(tmp_path / "own")
    engine.destroy()
    exported = str(tmp_path / "dcp")
    assert conversion.main(["export", str(tmp_path / "own"), exported, "--to", "dcp"]) == 0
    assert conversion.main(["import", exported, str(tmp_path / "again")]) == 0
    assert optimizer_of(tmp_path / "again") == ("zerorun's Adam", False)
    for name in ("own", "dcp"):
        engine = start(decoupled=True)
        before = engine.core.parameter_hash()
        with pytest.raises(zerorun.CheckpointError, match="are those of Adam with L2"):
            engine.load_checkpoint(tmp_path / name)
        assert engine.core.parameter_hash() == before
        engine.load_checkpoint(tmp_path / name, load_optimizer_states=False)
        engine.destroy()
        engine = start(decoupled=False)
        engine.load_checkpoint(tmp_path / name)
        assert engine.core.step_count == 1
        engine.destroy()


@pytest.mark.parametrize("through", ["directly", "through zerorun"])
def test_torch_goes_on_from_an_exported_folder(runs: Path, tmp_path: Path, through: str) -> None:
    """As an FSDP2 program loads: with get_state_dict and set_state_dict."""
    run = source = runs / "stage2-fp32-2"
    if through == "through zerorun":
        source = tmp_path / "own"
        assert conversion.main(["import", str(run), str(source)]) == 0
    out = tmp_path / "dcp"
    assert conversion.main(["export", str(source), str(out), "--to", "dcp"]) == 0
    model = make_model()
    optimizer = torch.optim.AdamW(groups_of(model), lr=1.0)
    saved, states = get_state_dict(model, optimizer)
    state = {"model": saved, "optim": states}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        dcp.load(state, checkpoint_id=out, no_dist=True)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
    )
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


def test_what_cannot_be_converted_is_one_line(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        (["import", tmp_path, tmp_path / "x"], "no checkpoint of DeepSpeed, Hugging Face or"),
        (["import", runs / "stage1-fp32-1", tmp_path / "x", "--tensor", "a"], "NAME=KIND"),
        (["export", tmp_path, tmp_path / "x"], str(tmp_path)),
        (
            ["export", runs / "stage1-fp32-1", tmp_path / "x", "--to", "dcp", "--dtype", "bf16"],
            "--dt",
        ),
        (["export", runs / "stage1-fp32-1", tmp_path / "x", "--max_shard_size", "big"], "'5GB'"),
        (["export", runs / "stage1-fp32-1", tmp_path / "x", "--to", "universal"], "--to dcp"),
    ):
        assert conversion.main([str(argument) for argument in arguments]) in {1, 2}
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"zerorun ckpt {arguments[0]}: error: ")
        assert message in line


def contents_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("place", ["", "global_step*", "the folder above, without latest"])
def test_an_import_into_its_own_source_is_refused_and_changes_nothing(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "stage1-fp32-1", run)
    (checkpoint,) = run.glob("global_step*")
    source, target = run, checkpoint if place.startswith("global") else run
    if place.startswith("the folder"):
        (run / "latest").unlink()
        source = checkpoint
    before = contents_of(run)
    assert conversion.main(["import", str(source), str(target)]) == 2
    assert "of another program, some files of which would be replaced" in capsys.readouterr().err
    assert contents_of(run) == before


def test_a_damaged_checkpoint_is_not_exported_for_torch(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(runs / "stage2-fp32-2", run)
    file = max(run.rglob("*optim_states.pt"), key=lambda path: path.stat().st_size)
    with zipfile.ZipFile(file) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
    content = bytearray(file.read_bytes())
    content[largest.header_offset + 256 + largest.file_size // 2] ^= 0x10
    file.write_bytes(content)
    assert conversion.main(["export", str(run), str(out), "--to", "dcp"]) == 1
    assert file.name in capsys.readouterr().err
    assert not out.exists()


def test_a_folder_of_torch_is_not_exported_onto_itself(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    source = str(runs / "stage2-fp32-2")
    assert conversion.main(["export", source, str(out), "--to", "dcp"]) == 0
    before = contents_of(out)
    assert conversion.main(["export", str(out), str(out), "--to", "dcp"]) == 2
    assert "is the checkpoint itself" in capsys.readouterr().err
    assert contents_of(out) == before


@pytest.mark.parametrize("states", [3, [], {"step": {"tensor": "x"}}])
def test_states_of_no_parameter_are_checked_before_anything_is_loaded(states: object) -> None:
    groups = [{"lr": 0.1}, {"lr": 0.1, COMMON_STATES: states}]
    with pytest.raises(zerorun.CheckpointError, match="parameter group 1: zerorun_common_states"):
        check_groups(groups, "here", external=True)
    groups[1][COMMON_STATES] = {"step": {"tensor": [1.0, 2.0]}, "k": 3}
    check_groups(groups, "here", external=True)
    assert common_states(groups[1], "here")["step"].tolist() == [1.0, 2.0]
