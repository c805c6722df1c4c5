"""Frozen parameters and buffers of unusual dtypes or memory, in checkpoints and exports."""

from pathlib import Path

import torch
import zerorun
from zerorun import consolidate
from zerorun.interchange.model_files import model_tensors

from cases.checkpoints import Normalised, engine_at
from cases.models import *
from cases.packed_weights import Frozen, full_bytes_of, start


class Renamed(Frozen):
    DTYPES = (torch.float8_e5m2, torch.float8_e4m3fn, *Frozen.DTYPES[2:])


def case_exports_have_them_in_their_dtypes(folder: Path) -> None:
    model = make(Frozen)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    engine = start(3, False, model)
    engine.save_checkpoint(folder, "saved")
    for dtype in (torch.float32, torch.float16):
        tensors = model_tensors(consolidate.open_model(folder, "saved"), dtype)
        for name, value in expected.items():
            own = dtype if value.dtype in (torch.float32, torch.bfloat16) else value.dtype
            assert tensors[name].dtype == own
            found = tensors[name].contiguous()
            assert found.shape == value.shape
            assert torch.equal(found.float(), value.float()), name
    engine = start(3, False, make(Renamed))
    before = full_bytes_of(engine)
    message = "p0 is torch.float8_e4m3fn, in this model torch.float8_e5m2"
    raises(zerorun.CheckpointError, message, engine.load_checkpoint, folder, "saved")
    assert_same(full_bytes_of(engine), before)


class Expanded(Normalised):
    """With buffers whose elements are not each a number in memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.rand(3).expand(2, 3))
        self.register_buffer("conjugate", torch.rand(3, dtype=torch.complex64).conj())


def case_buffers_that_are_views_are_shared_saved_and_loaded(folder: Path) -> None:
    engines = [engine_at(2, kind=Expanded, seed=RANK)]
    rows = engines[0].module.rows.clone()
    conjugate = engines[0].module.conjugate.resolve_conj()
    engines[0].communicator.broadcast(conjugate.view(torch.float32))
    assert torch.equal(rows[0], rows[1])
    engines[0].save_checkpoint(folder)
    engines.append(engine_at(3, kind=Expanded, seed=7))
    assert not torch.equal(engines[1].module.rows, rows)
    engines[1].load_checkpoint(folder)
    assert torch.equal(engines[1].module.rows, rows)
    assert torch.equal(engines[1].module.conjugate, conjugate)
    for engine in engines:
        engine.destroy()
