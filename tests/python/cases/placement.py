"""The place of states and parameters changes no number."""

import ctypes

from zerorun.hooks import shared_unit

from cases.models import *


def case_offloading_changes_no_number(folder: Path) -> None:
    for stage in (1, 2, 3):
        results = []
        file = {"device": "nvme", "nvme_path": str(folder)}
        host = {"device": "cpu"}
        parts = {**host, "ratio": 0.3}
        places = [({"device": "none"},) * 2, (host, host), (parts, host)]
        for states, parameters in [*places, (file, {**file, "max_in_cpu": 100})]:
            zero = {"offload_optimizer": states}
            zero |= {"offload_param": parameters} if stage == 3 else {}
            model, engine = started(config(stage, zero))
            losses = train(engine, 5)
            weight = model.embedding.weight
            moments = safe_get_full_optimizer_state(weight, "exp_avg")
            safe_set_full_optimizer_state(weight, moments * 2, "exp_avg")
            master = safe_get_full_fp32_param(weight)
            safe_set_full_fp32_param(weight, master + 0.5)
            losses += train(engine, 5, first=5)
            results.append((losses, engine._core.parameter_hash()))
            engine.destroy()
        assert all(result == results[0] for result in results), results
        assert not list(folder.iterdir())


def case_changes_of_gathered_parameters_reach_what_rests_elsewhere(folder: Path) -> None:
    file = {"device": "nvme", "nvme_path": str(folder)}
    results = []
    for place in ({}, {"offload_param": {**file, "max_in_cpu": 0}}, {"offload_optimizer": file}):
        model, engine = started(config(3, place))
        losses = train(engine, 3)
        weight = model.blocks[1].up.weight
        with GatheredParameters(weight, modifier_rank=0), torch.no_grad():
            before = weight.cpu().clone()
            if RANK == 0:
                weight.mul_(0.5)
        assert torch.equal(full(weight), before * 0.5), place
        losses += train(engine, 3, first=3)
        results.append((losses, engine._core.parameter_hash()))
    assert all(result == results[0] for result in results), results


def case_what_rests_in_files_is_in_memory_in_parts_only(folder: Path) -> None:
    file = {"device": "nvme", "nvme_path": str(folder), "buffer_count": 2}
    zero = {"offload_param": {**file, "max_in_cpu": 0}, "offload_optimizer": file}
    settings = config(3, zero | {"sub_group_size": 1 << 18})
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(32)))
    nbytes = sum(p.nbytes for p in model.parameters())
    before = memory_of_process("VmRSS")
    engine, *_ = initialize(model, adamw(model), config=settings)
    engine.save_checkpoint(folder / "saved")
    engine.load_checkpoint(folder / "saved")
    engine.load_checkpoint(folder / "saved", load_optimizer_states=False)
    # On one rank four times the parameters are in the files, with their states.
    use = engine._core.memory_use()
    assert memory_of_process("VmHWM") - before < use["pinned"] + use["buckets"] + nbytes


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether the values can be read. The system call looks, and does not die."""
    ends = os.pipe()
    written = ctypes.CDLL(None).write(ends[1], ctypes.c_void_p(tensor.data_ptr()), 1)
    for end in ends:
        os.close(end)
    return written == 1


def _train_with_seldom_full_parameters(share: bool) -> tuple[object, int]:
    settings = bare_config(zerorun={"comm_timeout": 30, "share_parameters": share})
    model, engine = started(settings)
    weight = model.blocks[1].up.weight
    stored = []
    handle = model.blocks[2].register_forward_hook(lambda *_: stored.append(_has_memory(kept)))
    with GatheredParameters(weight):
        kept = weight.detach().view(-1)
        assert _has_memory(kept)
    result = train(engine, 5), engine._core.parameter_hash()
    assert stored == [share] * 5
    handle.remove()
    with GatheredParameters(weight, modifier_rank=0), torch.no_grad():
        weight.fill_(0.5)
    assert full(weight).unique().tolist() == [0.5]
    engine.destroy()
    assert weight.ds_shape == (128, 32)
    return result


def case_parameters_that_the_ranks_do_not_share_come_and_go() -> None:
    """Also in memory of PyTorch's allocator, as on GPUs: while buckets are set up, one is full."""
    most = 0

    class Counted(shared_unit.BucketMemory):
        def __init__(self, core: object, device: torch.device) -> None:
            self._flat, self._device, self._pool = {}, device, None  # as on a GPU
            self.serve(core)

        def flat(self, *place: object) -> torch.Tensor:
            nonlocal most
            result = super().flat(*place)
            most = max(most, sum(each.untyped_storage().size() > 0 for each in self._flat.values()))
            return result

    shared = _train_with_seldom_full_parameters(share=True)
    assert _train_with_seldom_full_parameters(share=False) == shared
    with mock.patch.object(shared_unit, "BucketMemory", Counted):
        assert _train_with_seldom_full_parameters(share=False) == shared
    assert most == 1
