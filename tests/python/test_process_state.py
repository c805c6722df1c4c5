"""zerorun.process_state: what a process keeps beside its engines, in one place."""

import re
from pathlib import Path

import zerorun
from torch import nn
from zerorun import communicator, experts, process_state
from zerorun.model.engine_ranks import data_communicator
from zerorun.process_state import STATE, ProcessState
from zerorun.zero import Init


def step() -> None:
    model = nn.Linear(2, 2)
    settings = {"train_batch_size": 1, "comms_logger": {"enabled": True}}
    engine, *_ = zerorun.initialize(model, config=settings)
    engine.destroy()


def test_reset_forgets_all_of_it() -> None:
    before = communicator.world()
    step()
    STATE.experts["ep_size_1"] = STATE.sequence = object()  # type: ignore[assignment]
    data = data_communicator((0,))
    asked = []
    STATE.others["a module"] = lambda: asked.append(1)
    STATE.inits.append(Init(enabled=True))
    assert communicator.world() is before
    assert data_communicator((0,)) is data
    assert "ep_size_1" in experts.known()
    process_state.reset()
    assert asked == [1]
    assert ProcessState(others=STATE.others) == STATE
    assert experts.known() == {}
    assert communicator.world() is not before
    assert data_communicator((0,)) is not data
    step()
    del STATE.others["a module"]


def test_no_other_module_keeps_any(root: Path) -> None:
    """No other has a global statement, or a new container, which is there to be filled."""
    empty = r"^\w+(?:: .*)? = (\{\}|\[\]|set\(\)|weakref\.\S*)(?: *#.*)?$|^ *(global \w.*)$"
    kept = {}
    for path in (root / "python" / "zerorun").rglob("*.py"):
        if "site" not in path.parts:  # whose names are DeepSpeed's
            found = re.findall(empty, path.read_text(), re.MULTILINE)
            kept |= {path.stem: {one or other for one, other in found}} if found else {}
    assert kept == {
        "module_call": {"weakref.WeakSet()"},
        "shared_unit": {"weakref.WeakKeyDictionary()"},
    }
