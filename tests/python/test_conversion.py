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
from torch import nn
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
from zerorun.interchange.source import optimizer_of
from zerorun.model.tensors import SAFETENSORS_NAMES
from zerorun.optimizers.saved_values import COMMON_STATES, check_groups, common_states


def losses_of(run: Path) -> list[float]:
    return json.loads((run / "losses.json").read_text())["losses"]


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
    with pytest.raises(zerorun.CheckpointError, match=text):
        engine.load_checkpoint(folder, **keys)
    assert engine._core.parameter_hash() == before


def continued(engine: zerorun.ZeroEngine) -> list[float]:
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
    engine = started(3, dtype, schedule=True)
    assert engine.load_checkpoint(tmp_path)[1] == {"epoch": 4, "order": [3, 1, 2]}
    assert engine.global_steps == engine._core.step_count == SAVED_AFTER
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
    engine = started(stage)
    engine.load_checkpoint(tmp_path / "own")
    assert engine.module.calls.item() == SAVED_AFTER
    assert continued(engine) == pytest.approx(losses_of(source), rel=1e-6)
    untied = [str(source), str(tmp_path / "untied"), "--tensor", "head.weight=frozen"]
    assert conversion.main(["import", *untied]) == 0
    refuses_to_load(engine, tmp_path / "untied", "is untied, in this model tied")
    engine.destroy()


def groups_of_core(engine: zerorun.ZeroEngine) -> list[dict[str, object]]:
    return [{k: v for k, v in g.items() if k != "params"} for g in engine.optimizer.param_groups]


@pytest.mark.parametrize("kind", ["hugging_face", "stage0"])
def test_an_imported_model_is_trained_with_the_engines_own_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    saved = make_model().state_dict()
    if kind == "stage0":  # whose states have numbers, not names
        numbered = {"state": {0: {"exp_avg": torch.ones(17, 7)}}, "param_groups": [{"params": [0]}]}
        content = {"module": saved, "buffer_names": ["calls"], "optimizer": numbered}
        torch.save(content | {"param_shapes": None}, source / "mp_rank_00_model_states.pt")
    else:
        torch.save(saved, source / "pytorch_model.bin")
    frozen = ["--tensor", "fixed.*=frozen"]
    assert conversion.main(["import", str(source), str(tmp_path / "own"), *frozen]) == 0
    assert "optimizer states begin anew" in caplog.text
    results = []
    for folder, keys in ((source, {"load_optimizer_states": False}), (tmp_path / "own", {})):
        engine = started(2, model=type(make_model())())  # with values of its own
        own = groups_of_core(engine)
        engine.load_checkpoint(folder, **keys)
        assert groups_of_core(engine) == own
        assert engine._core.step_count == 0
        results.append(continued(engine))
        engine.destroy()
    assert results[0] == results[1]
    assert results[0][-1] != results[0][0]
    out = str(tmp_path / "dcp")
    assert conversion.main(["export", str(tmp_path / "own"), out, "--to", "dcp"]) == 0
    names = dcp.FileSystemReader(out).read_metadata().state_dict_metadata
    assert {*names} == {f"model.{name}" for name in saved}


def test_settings_that_a_source_does_not_have_are_not_made_up(runs: Path, tmp_path: Path) -> None:
    """DeepSpeed's elastic checkpoints have states without hyperparameters."""
    run = runs / "stage1-elastic-fp32-2"
    assert conversion.main(["import", str(run), str(tmp_path)]) == 0
    losses = []
    for folder in (run, tmp_path):
        engine = started(1)
        own = groups_of_core(engine)
        engine.load_checkpoint(folder)
        assert groups_of_core(engine) == own
        assert engine._core.step_count == SAVED_AFTER
        losses.append(continued(engine))
        engine.destroy()
    assert losses[0] == losses[1]


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
    engine.destroy()
    files = ["export", str(tmp_path / "own")]
    for kind in ("safetensors", "bin", "dcp"):
        assert conversion.main([*files, str(tmp_path / kind), "--to", kind]) == 0
    assert conversion.main(["import", str(tmp_path / "dcp"), str(tmp_path / "again")]) == 0
    for folder in ("own", "safetensors", "bin", "dcp"):
        model = with_buffers(5)
        model.none_of_them = torch.empty(0, 3)
        engine = zerorun.initialize(model, config=ADAMW)[0]
        engine.load_checkpoint(tmp_path / folder)
        for name, value in model.named_buffers():
            assert torch.equal(bytes_of(value), expected[name]), (folder, name)
        engine.destroy()


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
                engine.destroy()
        expected = f"the buffer table is {saved.dtype}, in this model {own.dtype}"
        refuses_to_load(engine, tmp_path, expected)
        engine.load_checkpoint(tmp_path, load_module_strict=False)
        assert not engine.module.table.any()
        engine.destroy()


def test_a_tied_parameter_of_which_a_folder_has_two_values_is_an_error(tmp_path: Path) -> None:
    """As a model that is not tied leaves them."""
    values = {name: value.clone() for name, value in make_model().state_dict().items()}
    values["head.weight"][3, 2] += 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        dcp.save({"model": values}, checkpoint_id=tmp_path, no_dist=True)
    engine = started(3, schedule=True)
    expected = "embedding.weight and head.weight are one parameter of this model"
    refuses_to_load(engine, tmp_path, expected, load_optimizer_states=False)
    engine.load_checkpoint(tmp_path, load_optimizer_states=False, load_module_strict=False)
    engine.destroy()


def test_weight_decay_keeps_its_kind(tmp_path: Path) -> None:
    """Adam with L2 and AdamW keep states of the same names."""

    adam, adamw = ({"type": "Adam", "params": {"adam_w_mode": mode}} for mode in (False, True))
    engine = started(1, schedule=True, optimizer=adam)
    engine.backward(loss_of(engine, rows_of(0, 0, 1)))
    engine.step()
    engine.save_checkpoint(tmp_path / "own")
    engine.destroy()
    exported = str(tmp_path / "dcp")
    assert conversion.main(["export", str(tmp_path / "own"), exported, "--to", "dcp"]) == 0
    assert conversion.main(["import", exported, str(tmp_path / "again")]) == 0
    assert optimizer_of(tmp_path / "again") == ("zerorun's Adam", False)
    for name in ("own", "dcp"):
        engine = started(1, schedule=True, optimizer=adamw)
        refuses_to_load(engine, tmp_path / name, "are those of Adam with L2")
        engine.load_checkpoint(tmp_path / name, load_optimizer_states=False)
        engine.destroy()
        engine = started(1, schedule=True, optimizer=adam)
        engine.load_checkpoint(tmp_path / name)
        assert engine._core.step_count == 1
        engine.destroy()


@pytest.mark.parametrize("through", ["directly", "through zerorun"])
def test_torch_goes_on_from_an_exported_folder(runs: Path, tmp_path: Path, through: str) -> None:
    run = source = runs / "stage2-fp32-2"
    if through == "through zerorun":
        source = tmp_path / "own"
        assert conversion.main(["import", str(run), str(source)]) == 0
    out = str(tmp_path / "dcp")
    assert conversion.main(["export", str(source), out, "--to", "dcp"]) == 0
    assert conversion.main(["export", out, out, "--to", "dcp"]) == 2  # onto itself
    model = make_model()
    optimizer = torch.optim.AdamW(groups_of(model), lr=1.0)
    saved, states = get_state_dict(model, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        dcp.load({"model": saved, "optim": states}, checkpoint_id=out, no_dist=True)
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


def test_what_cannot_be_converted_is_one_line(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, source, options, message in (
        ("import", tmp_path, "", "no checkpoint of DeepSpeed, Hugging Face or"),
        ("import", runs / "stage1-fp32-1", "--tensor a", "NAME=KIND"),
        ("export", tmp_path, "", str(tmp_path)),
        ("export", runs / "stage1-fp32-1", "--to dcp --dtype bf16", "--dt"),
        ("export", runs / "stage1-fp32-1", "--max_shard_size big", "'5GB'"),
        ("export", runs / "stage1-fp32-1", "--to universal", "--to dcp"),
    ):
        words = [command, str(source), str(tmp_path / "x"), *options.split()]
        assert conversion.main(words) in {1, 2}
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"zerorun ckpt {command}: error: ")
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


@pytest.mark.parametrize("states", [3, {"step": {"tensor": "x"}}])
def test_states_of_no_parameter_are_checked_before_anything_is_loaded(states: object) -> None:
    groups = [{"lr": 0.1}, {"lr": 0.1, COMMON_STATES: states}]
    with pytest.raises(zerorun.CheckpointError, match="parameter group 1: zerorun_common_states"):
        check_groups(groups, "here", external=True)
    groups[1][COMMON_STATES] = {"step": {"tensor": [1.0, 2.0]}, "k": 3}
    check_groups(groups, "here", external=True)
    assert common_states(groups[1], "here")["step"].tolist() == [1.0, 2.0]
