"""Checkpoints whose pickles do harm."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import torch
import zerorun

from cases.checkpoints import Normalised, engine_at
from cases.models import RANK, raises, train


class Malicious:
    """Its pickle makes a file when it is read."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.file,)


def case_a_conversion_runs_no_code_of_the_checkpoint(folder: Path) -> None:
    from zerorun.consolidate import fp32_state_dict, save_fp32_model

    made = folder / f"made{RANK}"
    engine = engine_at(2, kind=Normalised)
    train(engine, 2)
    engine.save_checkpoint(folder, client_state={"x": Malicious(made)})
    engine.communicator.barrier()
    assert "norm.running_mean" in fp32_state_dict(folder)
    save_fp32_model(folder, folder / f"out{RANK}")
    assert not made.exists()
    engine.load_checkpoint(folder)  # which says that it unpickles
    engine.communicator.barrier()
    assert (folder / "made0").exists()  # the saved client_state is rank 0's
    engine.destroy()


def program_text(engine: zerorun.ZeroEngine, folder: Path, text: str) -> Path:
    """A checkpoint with another text of the program."""
    zerorun._C.save_checkpoint(engine.core, str(folder), "t", text)
    engine.communicator.barrier()
    return folder


def case_a_pickle_in_the_place_of_data_is_refused(folder: Path) -> None:
    from zerorun.consolidate import fp32_state_dict

    engine = engine_at(1)
    stream, made = io.BytesIO(), folder / f"made{RANK}"
    torch.save({"buffers": {"x": Malicious(made)}}, stream)
    data = base64.b64encode(stream.getvalue()).decode()
    texts = {
        "data": json.dumps({"zerorun_python": 2, "data": data, "objects": ""}),
        "has version 1, whose buffers": json.dumps({"torch": data}),
        "has version 3; expected 2": json.dumps({"zerorun_python": 3}),
    }
    for number, (message, text) in enumerate(texts.items()):
        path = program_text(engine, folder / str(number), text)
        raises(zerorun.CheckpointError, message, lambda p=path: fp32_state_dict(p))
        raises(zerorun.CheckpointError, message, lambda p=path: engine.load_checkpoint(p))
    assert not made.exists()
    engine.destroy()
