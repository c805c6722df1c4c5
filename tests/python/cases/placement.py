"""The place of states and parameters changes no number."""

from __future__ import annotations

from pathlib import Path

import torch
import zerorun
from torch import nn
from zerorun.hooks.full_memory import BucketMemory
from zerorun.zero import GatheredParameters

from cases.models import RANK, adamw, config, make, train


def case_offloading_changes_no_number(folder: Path) -> None:
    """Neither losses nor states, whatever is stored on the host or in a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for stage in (1, 2, 3):
        places = [{"device": "none"}, {"device": "cpu"}, {"device": "cpu", "ratio": 0.3}]
        results = []
        for place in [*places, {"device": "nvme", "nvme_path": str(folder)}]:
            settings = config(stage)
            settings["zero_optimization"]["offload_optimizer"] = place
            if stage == 3:
                if place["device"] == "nvme":
                    settings["zero_optimization"]["offload_param"] = {**place, "max_in_cpu": 100}
                if place["device"] == "cpu":
                    settings["zero_optimization"]["offload_param"] = {"device": "cpu"}
            model = make()
            engine, *_ = zerorun.initialize(model, adamw(model), config=settings)
            losses = train(engine, 5)
            weight = model.embedding.weight
            moments = zerorun.zero.safe_get_full_optimizer_state(weight, "exp_avg")
            zerorun.zero.safe_set_full_optimizer_state(weight, moments * 2, "exp_avg")
            master = zerorun.zero.safe_get_full_fp32_param(weight)
            zerorun.zero.safe_set_full_fp32_param(weight, master + 0.5)
            losses += train(engine, 5, first=5)
            results.append((losses, engine.core.parameter_hash()))
            engine.destroy()
        assert all(result == results[0] for result in results), results
        assert not list(folder.iterdir())


def case_changes_of_gathered_parameters_reach_what_rests_elsewhere(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = {"device": "nvme", "nvme_path": str(folder)}
    places = [{}, {"offload_param": {**file, "max_in_cpu": 0}}, {"offload_optimizer": file}]
    results = []
    for place in places:
        settings = config(3)
        settings["zero_optimization"] |= {"stage3_param_persistence_threshold": 0, **place}
        model = make()
        engine, *_ = zerorun.initialize(model, adamw(model), config=settings)
        losses = train(engine, 3)
        weight = model.blocks[1].up.weight
        with GatheredParameters(weight, modifier_rank=0), torch.no_grad():
            before = weight.clone()
            if RANK == 0:
                weight.mul_(0.5)
        with GatheredParameters(weight):
            assert torch.equal(weight, before * 0.5), place
        losses += train(engine, 3, first=3)
        results.append((losses, engine.core.parameter_hash()))
        engine.destroy()
    assert all(result == results[0] for result in results), results


class Stack(nn.Module):
    """32 matrices of 4 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024, bias=False) for _ in range(32))


def _peak_memory() -> int:
    """Bytes, since it was set back to what is in use."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def case_what_rests_in_files_is_in_memory_in_parts_only(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = {"device": "nvme", "nvme_path": str(folder), "buffer_count": 2}
    settings = config(3)
    settings["zero_optimization"] |= {
        "offload_param": {**file, "max_in_cpu": 0},
        "offload_optimizer": file,
        "sub_group_size": 1 << 18,
    }
    model = make(Stack)
    nbytes = sum(p.nbytes for p in model.parameters())
    _peak_memory()
    before = _peak_memory()
    engine, *_ = zerorun.initialize(model, adamw(model), config=settings)
    engine.save_checkpoint(folder / "saved")
    engine.load_checkpoint(folder / "saved")
    engine.load_checkpoint(folder / "saved", load_optimizer_states=False)
    # On one rank four times the parameters are in the files, with their states.
    use = engine.core.memory_use()
    assert _peak_memory() - before < use["pinned"] + use["buckets"] + nbytes
    engine.destroy()


def case_parameters_that_the_ranks_do_not_share_come_and_go(_folder: Path) -> None:
    """Their storage is empty after use, and what autograd saved of them has its values again."""
    results, most = [], 0
    make_flat = BucketMemory.flat

    def flat(self: BucketMemory, *place: object) -> torch.Tensor:
        nonlocal most
        result = make_flat(self, *place)
        most = max(most, sum(each.untyped_storage().size() > 0 for each in self._flat.values()))
        return result

    BucketMemory.flat = flat
    for share in (True, False):
        settings = config(3, zerorun={"comm_timeout": 30, "share_parameters": share})
        settings["zero_optimization"] |= {"stage3_max_reuse_distance": 0}
        settings["zero_optimization"] |= {"stage3_max_live_parameters": 0}
        model = make()
        engine, *_ = zerorun.initialize(model, adamw(model), config=settings)
        weight = model.blocks[1].up.weight
        stored = []
        handle = model.blocks[2].register_forward_hook(lambda *_, s=stored: s.append(s[0].size()))
        with GatheredParameters(weight):
            stored.append(weight.untyped_storage())
        results.append((train(engine, 5), engine.core.parameter_hash()))
        assert all((size > 0) == share for size in stored[1:])
        handle.remove()
        with GatheredParameters(weight, modifier_rank=0), torch.no_grad():
            weight.fill_(0.5)
        with GatheredParameters(weight):
            assert weight.unique().tolist() == [0.5]
        engine.destroy()
        assert weight.ds_shape == (128, 32)
    BucketMemory.flat = make_flat
    assert most == 1  # bucket at a time is full while they are set up
    assert results[0] == results[1]
