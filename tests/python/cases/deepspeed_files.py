"""Checkpoints in DeepSpeed's layout, written by hand: kinds that are not among those in data/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import zerorun
from uneven_model import groups_of, make_model

from cases.interchange import engine_for
from cases.models import RANK, raises

TAG = "global_step5"


def write(folder: Path, model: dict[str, Any], optimizer: dict[str, Any] | None = None) -> None:
    """The files of one rank, seen by all ranks."""
    if RANK == 0:
        (folder / TAG).mkdir(parents=True)
        (folder / "latest").write_text(TAG)
        content = {"buffer_names": ["calls"], "ds_config": {}, "global_steps": 5} | model
        torch.save(content, folder / TAG / "mp_rank_00_model_states.pt")
        if optimizer is not None:
            path = folder / TAG / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
            torch.save({"optimizer_state_dict": optimizer}, path)


def case_a_checkpoint_without_zero_gives_its_values(folder: Path) -> None:
    """Stage 0 saves one file, in which the optimizer's states have numbers."""
    saved = make_model()
    numbered = {"state": {0: {"exp_avg": torch.ones(17, 7)}}, "param_groups": [{"params": [0]}]}
    write(folder, {"module": saved.state_dict(), "optimizer": numbered, "param_shapes": None})
    engine = engine_for(3)
    engine.communicator.barrier()
    before = engine.core.parameter_hash()
    message = "without ZeRO (stage 0), whose optimizer states have no names; load_optimizer_states="
    raises(zerorun.CheckpointError, message, lambda: engine.load_checkpoint(folder))
    assert engine.core.parameter_hash() == before
    engine.load_checkpoint(folder, load_optimizer_states=False)
    loaded = engine.full_state_dict(rank0_only=False)
    assert all(torch.equal(loaded[name], value) for name, value in saved.state_dict().items())
    engine.destroy()


def case_states_without_a_count_have_the_steps_of_the_training(folder: Path) -> None:
    """Momentum needs no count of steps, so its optimizers save none."""
    saved = make_model()
    name_of = {parameter: name for name, parameter in saved.named_parameters()}
    groups = [group["params"] for group in groups_of(saved)]
    flat = [torch.cat([p.detach().flatten() for p in group]) for group in groups]
    model = {
        "module": saved.state_dict(),
        "param_shapes": [{name_of[p]: p.shape for p in group} for group in groups],
        "shared_params": {"head.weight": "embedding.weight"},
        "skipped_steps": 1,
    }
    base = {
        "state": {index: {"momentum_buffer": values * 2} for index, values in enumerate(flat)},
        "param_groups": [{"lr": 0.25, "params": [index]} for index in range(len(flat))],
    }
    optimizer = {"zero_stage": 1, "partition_count": 1, "single_partition_of_fp32_groups": flat}
    write(folder, model, optimizer | {"base_optimizer_state": base})
    engine = engine_for(2, optimizer={"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}})
    engine.communicator.barrier()
    engine.load_checkpoint(folder, load_lr_scheduler_states=False)
    assert engine.core.step_count == 4
    assert engine.global_steps == 5
    assert [group["lr"] for group in engine.optimizer.param_groups] == [0.25, 0.25]
    momentum = zerorun.zero.safe_get_full_optimizer_state(
        engine.module.first.weight, "momentum_buffer"
    )
    assert torch.equal(momentum, saved.first.weight.detach() * 2)
    engine.destroy()
