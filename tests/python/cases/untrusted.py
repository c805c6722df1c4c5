"""Checkpoints whose pickles do harm."""

import argparse
import tempfile

import numpy as np
import safetensors
from safetensors.torch import load_file

from cases.checkpoints import Normalised, engine_at, sgd
from cases.models import *


class Malicious:
    """Its pickle makes a file when it is read."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.file,)


def case_only_who_allows_pickles_runs_their_code(folder: Path) -> None:
    from zerorun.consolidate import fp32_state_dict, save_model

    made = folder / f"made{RANK}"
    harm = {"x": [Malicious(made)]}
    careful = engine_at(2, kind=Normalised)
    train(careful, 2)
    text = "client_state['x'][0] is of cases.untrusted.Malicious, which JSON has no form for"
    refuses(text, careful.save_checkpoint, folder, client_state=harm)
    careful.destroy()
    trusting = engine_at(2, kind=Normalised, checkpoint={"pickle_client_state": True})
    train(trusting, 2)
    trusting.save_checkpoint(folder, client_state=harm)
    trusting.communicator.barrier()
    assert "norm.running_mean" in fp32_state_dict(folder)
    save_model(folder, folder / f"out{RANK}")
    trusting.destroy()
    careful = engine_at(2, kind=Normalised)
    raises(zerorun.CheckpointError, "has a pickle", careful.load_checkpoint, folder)
    assert not made.exists()
    careful.destroy()
    trusting = engine_at(2, kind=Normalised, checkpoint={"pickle_client_state": True})
    trusting.load_checkpoint(folder)
    trusting.communicator.barrier()
    assert (folder / "made0").exists()  # the saved client_state is rank 0's


def case_texts_of_other_versions_or_forged_ones_change_nothing(folder: Path) -> None:
    """Whoever can compute a hash may write such a text."""
    engine = engine_at(1, sgd)
    train(engine, 1)
    engine.save_checkpoint(folder / "whole")
    engine.communicator.barrier()
    good = json.loads(zerorun._C.SavedModel(str(folder / "whole"), "").client_state)
    record = good["shard_files"]
    groups = good["objects"]["param_groups"]
    forged = {
        "has version 2; expected 3": {"zerorun_python": 2},
        "has no 'objects'": {"objects": None},
        "of the kind '$more'": {"objects": {"x": {"$more": 1}}},
        "$tensor: torch.save is no dtype": {"objects": {"x": {"$tensor": ["save", [1], ""]}}},
        "numpy's dtype |O is not of numbers": {"objects": {"x": {"$ndarray": ["|O", [1], ""]}}},
        "got '../out', expected the name": {"shard_files": record | {"folder": "../out"}},
        "got '/x', expected the name": {"shard_files": record | {"files": [["/x", 1, ""]]}},
        "no list of optimizer states": {"shard_files": [1]},
        "global_steps is '9', expected": {"counters": {"global_steps": "9"}},
        "lr of parameter group 0 is -1, expected": {
            "objects": good["objects"] | {"param_groups": [groups[0] | {"lr": -1}, *groups[1:]]}
        },
        "lr_scheduler is [1], expected": {"objects": good["objects"] | {"lr_scheduler": [1]}},
        "'exact_dtypes' are no dtypes by name": {"exact_dtypes": {"weight": "float32"}},
    }
    for number, (message, values) in enumerate(forged.items()):
        path, changed = folder / str(number), good | values
        text = json.dumps({key: value for key, value in changed.items() if value is not None})
        zerorun._C.save_checkpoint(engine._core, str(path), "t", text)
        engine.communicator.barrier()
        refuses_to_load(engine, path, message)


def case_bytes_that_are_no_text_are_shown(folder: Path) -> None:
    own = folder / str(RANK)
    own.mkdir(parents=True)
    (own / "latest").write_bytes(b"step\xff")
    text = "step\\xff holds no checkpoint, although latest names it"
    raises(zerorun.CheckpointError, text, zerorun._C.SavedModel, str(own), "")


def case_a_checkpoint_that_this_user_may_not_read_is_no_new_start() -> None:
    engine = engine_at(1)
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as outer:
        Path(outer).chmod(0o755)
        hidden = Path(outer, "run")
        hidden.mkdir(mode=0)
        os.seteuid(user or 65534)
        try:
            raises(zerorun.Error, "Permission denied", engine.load_checkpoint, hidden)
        finally:
            os.seteuid(user)
        hidden.rmdir()


def case_values_of_a_client_state_come_back_as_they_were(folder: Path) -> None:
    engine = engine_at(1)
    state = {
        "plain": [None, True, 3, -1.5, "text", {"a": {"$b": 1}}],
        "numbers": (float("inf"), 2j, 1 << 70),
        "torch": [torch.arange(6).view(2, 3), torch.tensor(1.5, dtype=torch.bfloat16)],
        "kinds": [torch.float16, torch.device("cpu"), torch.Size([2, 3])],
        "numpy": [np.arange(3.0), np.float32(2), np.random.default_rng(1).bit_generator.state],
        "random": random.Random(1).getstate(),
        "last": [collections.deque([1, 2], 2), collections.deque([3])],
        "more": {1: b"x", (2, 3): {4, 5}, Path("a/b"): argparse.Namespace(lr=1e-3)},
    }
    engine.save_checkpoint(folder, client_state=state)
    loaded = engine.load_checkpoint(folder)[1]
    for key in ("plain", "numbers", "kinds", "random", "more"):
        assert loaded[key] == state[key], key
        assert type(loaded[key]) is type(state[key])
    assert repr(loaded["last"]) == repr(state["last"])  # with the length that it may have
    for got, expected in zip(loaded["torch"], state["torch"], strict=True):
        assert torch.equal(got, expected)
        assert got.dtype == expected.dtype
    assert np.array_equal(loaded["numpy"][0], state["numpy"][0])
    assert loaded["numpy"][1:] == state["numpy"][1:]


def case_shards_and_buffers_are_safetensors(folder: Path) -> None:
    engine = engine_at(2, kind=Normalised)
    train(engine, 1)
    engine.save_checkpoint(folder)
    elements: dict[str, int] = {}
    for path in sorted((folder / "global_step1").glob("rank*.safetensors")):
        with safetensors.safe_open(path, "pt") as file:
            assert file.metadata()["format"] == "zerorun checkpoint"
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                parameter, _, interval = name.rpartition("[")
                begin, end = map(int, interval.rstrip("]").split(":"))
                assert file.get_tensor(name).numel() == end - begin
                elements[parameter] = elements.get(parameter, 0) + end - begin
    for name, parameter in engine.module.named_parameters():
        for kind in ("master", "exp_avg", "exp_avg_sq"):
            assert elements.pop(f"{name}.{kind}") == parameter.numel()
    assert not elements
    [path] = (folder / "global_step1").glob("buffers-*.safetensors")
    saved = load_file(path)
    for buffer in engine.module.buffers():
        buffer.zero_()
    engine.load_checkpoint(folder)
    assert all(torch.equal(saved[name], value) for name, value in engine.module.named_buffers())
