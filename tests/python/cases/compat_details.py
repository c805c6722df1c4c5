"""What programs that use DeepSpeed's smaller interfaces meet, one case each."""

from __future__ import annotations

import functools
import os
import types
from pathlib import Path
from unittest.mock import patch

import deepspeed
import torch
import zerorun
from deepspeed.checkpoint import UNIVERSAL_CHECKPOINT_INFO, ds_to_universal
from deepspeed.utils import safe_get_full_fp32_param
from deepspeed.utils.timer import ThroughputTimer
from zerorun.hooks.external import external_parameters

from cases.compat import start
from cases.models import RANK, assert_close, config, make, raises, train


def _own_section() -> tuple[type, type]:
    """What a program derives: the class and its base."""
    from deepspeed.runtime.config_utils import DeepSpeedConfigModel

    class Inner(DeepSpeedConfigModel):
        sizes: list = []  # noqa: RUF012 - each model has its own

    class Own(Inner):
        name: str
        enabled: bool = False

    return Own, DeepSpeedConfigModel


def case_programs_derive_sections_without_pydantic(_folder: Path) -> None:
    from deepspeed.runtime._program_models import program_model

    program_model.cache_clear()
    with patch("importlib.util.find_spec", return_value=None):
        own, base = _own_section()
    program_model.cache_clear()
    first, second = own(name="a", enabled=True), own(name="b")
    first.sizes.append(1)
    assert first.model_dump() == {"sizes": [1], "name": "a", "enabled": True}
    assert second.sizes == []
    assert isinstance(first, base)
    raises(ValueError, "missing ['name']", own)
    raises(ValueError, "unknown ['nam']", lambda: own(name="a", nam="b"))


def case_programs_derive_sections_that_are_pydantics_models(_folder: Path) -> None:
    try:
        import pydantic
    except ImportError:
        return
    own, base = _own_section()

    class Renamed(base):
        before: str = pydantic.Field(
            "", json_schema_extra={"deprecated": True, "new_param": "after", "new_param_fn": list}
        )
        after: list = []  # noqa: RUF012
        count: int = pydantic.Field(2, alias="number")

    model = own(name="a", enabled="yes", sizes="auto")
    assert model.model_dump() == {"sizes": [], "name": "a", "enabled": True}
    assert issubclass(own, pydantic.BaseModel)
    assert issubclass(own, base)
    assert isinstance(model, base)
    assert not issubclass(pydantic.BaseModel, base)
    for wrong in ({}, {"name": "a", "nam": "b"}, {"name": []}):
        raises(pydantic.ValidationError, "Own", functools.partial(own, **wrong))
    assert Renamed(before="xy").after == ["x", "y"]
    assert (Renamed(number=5).count, Renamed(count=6).count, Renamed().after) == (5, 6, [])
    raises(AssertionError, "together", lambda: Renamed(before="x", after=[]))


def _groups(*rates: float) -> torch.optim.Optimizer:
    """An optimizer with a group of each rate."""
    return torch.optim.SGD(
        [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    )


def case_a_schedule_takes_rates_of_its_groups(_folder: Path) -> None:
    schedules = deepspeed.runtime.lr_schedules
    warmup = schedules.WarmupLR(_groups(0.5, 0.25), warmup_num_steps=4)
    assert (warmup.max_lrs, warmup.get_last_lr()) == ([0.5, 0.25], [0, 0])
    warmup.step(4)
    assert warmup.get_lr() == [0.5, 0.25]
    decay = schedules.WarmupDecayLR(_groups(0.5), total_num_steps=9, warmup_num_steps=3)
    assert decay.max_lrs == [0.001]
    cosine = schedules.WarmupCosineLR(_groups(0.5), total_num_steps=9, warmup_num_steps=3)
    assert cosine.get_last_lr() == [0]
    raises(ValueError, "warmup_num_steps", lambda: schedules.WarmupLR(_groups(1), 0, 1, None))


def case_masters_of_stage_0_have_their_names(_folder: Path) -> None:
    engine, optimizer, *_ = start(0, bf16={"enabled": True})
    train(engine, 2)
    (flat,) = optimizer.fp32_groups_flat
    (whole,) = optimizer.fp32_groups
    assert torch.equal(flat, torch.cat([master.flatten() for master in whole]))
    for parameter, master in zip(engine.module.parameters(), whole, strict=True):
        assert torch.equal(master, safe_get_full_fp32_param(parameter))
    engine.destroy()
    for stage, section in ((0, {}), (1, {"bf16": {"enabled": True}})):
        engine, optimizer, *_ = start(stage, **section)
        assert not hasattr(optimizer, "fp32_groups_flat")
        engine.destroy()


def _to_universal(source: Path, target: Path) -> None:
    """As a program calls it: on rank 0, with what DeepSpeed's options make."""
    if RANK == 0:
        ds_to_universal.main(
            types.SimpleNamespace(
                input_folder=str(source),
                output_folder=str(target),
                num_extract_workers=1,
                num_merge_workers=1,
                keep_temp_folder=False,
                strict=True,
                inject_missing_state=False,
            )
        )
    torch.distributed.barrier()


def case_a_universal_checkpoint_is_the_checkpoint(folder: Path) -> None:
    engine, *_ = start(2)
    train(engine, 2)
    engine.save_checkpoint(folder, "saved", client_state={UNIVERSAL_CHECKPOINT_INFO: {}, "i": 2})
    (folder / "not_one").mkdir(exist_ok=True)
    for _ in range(2):  # another time replaces it
        _to_universal(folder / "saved", folder / "saved_universal")
    assert (folder / "latest_universal").read_text() == "saved_universal"
    assert (folder / "latest").read_text().strip() == "saved"  # a save's
    expected = train(engine, 2, first=2)
    engine.destroy()
    other, *_ = start(3, checkpoint={"load_universal": True})
    path, client_state = other.load_checkpoint(folder, "saved_universal")
    assert (Path(path).name, client_state["i"]) == ("saved_universal", 2)
    assert train(other, 2, first=2) == expected
    other.destroy()
    if RANK == 0:
        no_checkpoint = functools.partial(_to_universal, folder / "not_one", folder / "other")
        raises(zerorun.CheckpointError, "not_one: no checkpoint", no_checkpoint)
        (folder / "not_one" / "kept").touch()
        taken = functools.partial(_to_universal, folder / "saved", folder / "not_one")
        raises(zerorun.CheckpointError, "and is no checkpoint: name another", taken)
        assert (folder / "not_one" / "kept").exists()


def case_a_universal_checkpoint_takes_a_torch_optimizers_states_along(folder: Path) -> None:
    def begin() -> zerorun.ZeroEngine:
        model = make()
        optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
        return deepspeed.initialize(model=model, optimizer=optimizer, config=config(1))[0]

    engine = begin()
    train(engine, 2)
    engine.save_checkpoint(folder / "a", "saved")
    _to_universal(folder / "a" / "saved", folder / "b" / "moved")
    expected = train(engine, 2, first=2)
    engine.destroy()
    if RANK == 0:
        for path in (folder / "a").iterdir():  # the copy stands on its own
            path.rename(folder / f"gone-{path.name}")
    torch.distributed.barrier()
    other = begin()
    assert other.load_checkpoint(folder / "b")[0] == str(folder / "b" / "moved")
    assert train(other, 2, first=2) == expected
    other.destroy()


def case_a_save_needs_no_modes_of_files(folder: Path) -> None:
    """Shares of files that refuse chmod."""
    engine, *_ = start(1)
    with patch("os.chmod", side_effect=PermissionError("refused")):
        engine.save_checkpoint(folder, "saved")
    assert (folder / "zero_to_fp32.py").exists()
    assert not os.access(folder / "zero_to_fp32.py", os.X_OK)
    engine.destroy()


def case_a_throughput_timer_wants_whole_numbers(_folder: Path) -> None:
    settings = types.SimpleNamespace(enabled=True, synchronized=False)
    for wrong in (0, -1, 1.5):
        raises(
            ValueError,
            f"steps_per_output {wrong}",
            lambda w=wrong: ThroughputTimer(settings, 1, 2, w),
        )
    assert ThroughputTimer(settings, 1, steps_per_output=3).steps_per_output == 3


def case_a_model_is_made_for_mics_as_for_any_shards(_folder: Path) -> None:
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "mics_shard_size": 1}
    settings = config(3) | {"zero_optimization": zero}
    with deepspeed.zero.MiCS_Init(config_dict_or_path=settings):
        model = make()
    assert model.head.weight.ds_status is deepspeed.zero.ZeroParamStatus.NOT_AVAILABLE
    engine, *_ = start(3, model, zero_optimization=zero)
    plain, *_ = start(3)
    assert_close(train(engine, 2), train(plain, 2))
    engine.destroy()
    plain.destroy()


def case_external_parameters_are_named_where_deepspeed_has_them(_folder: Path) -> None:
    from deepspeed.runtime.zero import partition_parameters

    engine, *_ = start(3)
    module, weight = engine.module.blocks[0], engine.module.head.weight
    partition_parameters.register_external_parameter(module, weight)
    assert external_parameters(module) == [weight]
    partition_parameters.unregister_external_parameter(module, weight)
    assert external_parameters(module) == []
    engine.destroy()
