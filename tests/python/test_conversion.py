"""zerorun ckpt import and export, which are engines of one rank: here this process."""

import json
import tarfile
import warnings
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

ARCHIVE = Path(__file__).parent / "data" / "deepspeed_checkpoints.tar.xz"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deepspeed")
    with tarfile.open(ARCHIVE) as file:
        file.extractall(folder, filter="data")
    return folder


def losses_of(run: Path) -> list[float]:
    return json.loads((run / "losses.json").read_text())["losses"]


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
    losses = []
    for step in range(SAVED_AFTER, SAVED_AFTER + CONTINUED):
        loss = loss_of(engine, rows_of(step, 0, 1))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    assert losses == pytest.approx(losses_of(runs / name), rel=bound)
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
        (["export", tmp_path, tmp_path / "x"], str(tmp_path)),
        (
            ["export", runs / "stage1-fp32-1", tmp_path / "x", "--to", "dcp", "--dtype", "bf16"],
            "--dt",
        ),
        (["export", runs / "stage1-fp32-1", tmp_path / "x", "--max_shard_size", "big"], "'5GB'"),
    ):
        assert conversion.main([str(argument) for argument in arguments]) in {1, 2}
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"zerorun ckpt {arguments[0]}: error: ")
        assert message in line
